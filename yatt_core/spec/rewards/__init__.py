"""The `rewards` section of a spec: parts, judges, templates, how scores are parsed."""
