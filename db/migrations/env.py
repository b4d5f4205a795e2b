"""The script that Alembic runs: applies the migrations in the open transaction it receives from `db.core.migrate`."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
