"""The `rewards` section of a spec: parts, judges, templates, and how scores are parsed."""
