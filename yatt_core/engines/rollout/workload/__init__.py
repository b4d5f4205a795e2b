"""Samplers of a workload of one's own."""
