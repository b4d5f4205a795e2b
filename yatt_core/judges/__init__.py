"""Judges of responses: generative models, third-party endpoints, reward models and virtual judges."""
