"""Prefect's client and servers, and error messages for when they cannot be reached."""
