"""What Alembic runs: it consumes the open transaction that `db.core.migrate` hands it and applies the migrations within."""

from __future__ import annotations

from alembic import context

from db.core.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
