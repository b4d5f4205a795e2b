"""Kinds of workloads that have names in a spec, without what a spec needs to be read: commands name them at once."""

LANGUAGE = "language"
"""A language model is trained, as the other sections of a spec describe it."""
CUSTOM = "custom"
"""A class of the user's own, in a file."""
