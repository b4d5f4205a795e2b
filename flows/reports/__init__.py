"""Reports about a run, made from the ledger: audit, lineage, accounting of wall time, advice."""
