"""Fills in the flow's protocols over other projects' services: MLflow (tracker, registry, reader) and Apprise."""
