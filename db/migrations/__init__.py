"""Alembic migrations of the ledger, run by `Ledger.open`.

To add one: run `alembic revision`, then update `HEAD` in db/core/migrate.py.
"""
