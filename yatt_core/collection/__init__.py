"""A controller's work on a shard: from drawn prompts to scored responses in sealed files. Knows nothing of Ray."""
