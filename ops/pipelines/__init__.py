"""Pipelines as they are seen: their view, their commands, their pages, and the work of their jobs."""
