"""Corrections for the difference between the sampler and the policy that learns, one file a method."""
