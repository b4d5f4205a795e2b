"""Engines that generate, and how new weights get into them."""
