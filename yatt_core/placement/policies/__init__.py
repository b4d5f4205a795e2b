"""The placement policies, and how to find one by name."""
