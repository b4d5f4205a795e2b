"""The script that Alembic runs: applies the migrations in the open transaction it receives from `db.core.migrate`."""

from __future__ import annotations

from alembic import context

from db.core.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
