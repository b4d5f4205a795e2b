"""Prefect's client, server and what they say when they cannot be reached."""
