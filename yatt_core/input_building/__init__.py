"""Builds a run's inputs (prompts, the initial model, trained judges) and checks that they fit together."""
