"""Runs an iteration of samples with images on the same actors: through the data plane, and through central
controllers.
"""
