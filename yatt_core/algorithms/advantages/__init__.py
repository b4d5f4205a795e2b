"""Advantages of responses or tokens, one file a method: its settings are a section of the spec, its formula a function."""
