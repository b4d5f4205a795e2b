"""The ledger: the system of record of every run, in SQLite or PostgreSQL. `db.ledger` is the door; knows nothing else of YATT."""
