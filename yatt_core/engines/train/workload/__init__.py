"""Workloads of one's own on the trainer's ranks."""
