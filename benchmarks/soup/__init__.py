"""Does Bone Soup follow preferences better than Rewarded Soup? Run with `python -m benchmarks.soup`."""
