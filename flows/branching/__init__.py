"""Branching."""
