"""Alembic migrations of the ledger, run by `Ledger.open`. A new one: `alembic revision`, then `HEAD` in db/core/migrate.py."""
