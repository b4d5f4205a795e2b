"""What the ledger says of a run afterwards: audit, lineage, where its time went, advice."""
