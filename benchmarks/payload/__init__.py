"""Runs an iteration of samples with images on the same actors: by the data plane, and by central controllers."""
