"""Keeps the tests that need vLLM in their own process out of this environment."""

collect_ignore = ["inside"]
