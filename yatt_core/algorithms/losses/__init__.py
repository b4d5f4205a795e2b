"""Losses of the policy, one file a method: the method's settings are a section of the spec, its formula a function."""
