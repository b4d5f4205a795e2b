"""Reads a spec: YAML, files that extend one another, overrides, mistakes in a person's words."""
