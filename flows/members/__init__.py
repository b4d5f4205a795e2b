"""Runs that belong together, such as those of a soup or a sweep: how they are found, made and driven."""
