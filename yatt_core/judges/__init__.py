"""Judges of responses: generative models, third-party endpoints, reward models, virtual ones."""
