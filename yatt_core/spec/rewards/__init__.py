"""Rewarding."""
