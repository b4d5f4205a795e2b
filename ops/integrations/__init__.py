"""Implements the flow's protocols with third-party services: MLflow (tracker, registry, reader) and Apprise."""
