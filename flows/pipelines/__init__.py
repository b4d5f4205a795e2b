"""Pipelines: their jobs are done one after another, each in its own way, and recorded in the ledger."""
