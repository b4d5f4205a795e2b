"""The placement policies, and how one is found by name."""
