"""Reads a run's inputs: the manifest and the prompts."""
