"""Penalties on rewards by the length of responses, one file a method."""
