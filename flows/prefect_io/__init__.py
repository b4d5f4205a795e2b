"""Prefect io."""
