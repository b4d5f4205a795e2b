"""Promotion of snapshots: the aliases of a run, in the ledger first and in MLflow's registry after it."""
