"""Objectives that learn from data: one file per method, each a function of the scores of whole responses."""
