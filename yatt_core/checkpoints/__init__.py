"""Checkpoints of the trainer: written, published, verified, kept or deleted, and exported as a Hugging Face folder."""
