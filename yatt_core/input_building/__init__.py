"""Builds a run's inputs (prompts, the initial model) and checks that they fit together."""
