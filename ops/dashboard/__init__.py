"""The dashboard: pages, JSON API and metrics endpoint over the ledger and the run folders."""
