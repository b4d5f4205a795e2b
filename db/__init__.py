"""The ledger: the system of record of every run, in SQLite or PostgreSQL.

`db.ledger` is the entry point. The package depends on nothing else in YATT.
"""
