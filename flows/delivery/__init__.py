"""Delivery of the ledger's outbox: metrics and checkpoints to the tracker, notifications to people."""
