"""Operators' changes to a run's line of iterations: fork, roll back, revise the spec, restore."""
