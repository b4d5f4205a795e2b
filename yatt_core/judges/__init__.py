"""Judges of responses: generative models, others' endpoints, reward models."""
