"""Run actors."""
