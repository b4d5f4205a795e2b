"""Reads a spec: YAML files that extend one another, overrides, and readable error messages."""
