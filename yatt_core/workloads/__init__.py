"""Workloads: what a run samples and learns."""
