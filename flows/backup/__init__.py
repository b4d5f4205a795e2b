"""Backups of a home: the ledger's rows and the files that they need, restored under any path and into either database."""
