"""Whole iterations under the modes of asynchrony, in simulated time."""
