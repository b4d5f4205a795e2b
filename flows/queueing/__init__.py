"""The scheduler of the queue: what it reads from the ledger, how it watches drivers, and its rounds."""
