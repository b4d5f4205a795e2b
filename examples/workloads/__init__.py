"""Trainings of one's own, on the public contract alone (docs/workloads.md)."""
