"""Tests of the checks before a run (`ops/preflight`)."""
