"""Reads a run's inputs: the manifest, and the prompts that it vouches for."""
