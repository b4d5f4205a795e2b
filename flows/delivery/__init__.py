"""What leaves the ledger through the outbox: metrics and checkpoints to the tracker, news to people."""
