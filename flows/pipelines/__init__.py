"""Pipelines: run their jobs one after another, each kind in its own way, and record them in the ledger."""
