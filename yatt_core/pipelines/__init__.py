"""Pipelines: jobs that need each other, from supervised training to promotion, in one file."""
