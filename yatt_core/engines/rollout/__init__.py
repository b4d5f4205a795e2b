"""Engines that generate, and how they receive new weights."""
