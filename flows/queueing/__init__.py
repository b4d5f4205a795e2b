"""The queue over shared devices: what its scheduler decides, what it reads from the ledger, and its rounds."""
