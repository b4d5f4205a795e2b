"""Soups as they are seen: their view, their command, their pages and their words."""
