"""Does every method of the algorithm learn? Run with `python -m benchmarks.algorithms`."""
