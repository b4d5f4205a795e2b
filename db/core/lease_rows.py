"""Rows of leases inside a caller's transaction: locking one, creating it, freeing it, and finding a live holder.

Consumes a connection of the ledger and a subject (`subjects.py`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from db.core.engine import Database
from db.core.errors import LedgerError, PipelineNotFound, RunNotFound
from db.core.holder import Holder, holder_columns, live_holder
from db.core.models import Lease
from db.core.subjects import MADE_WHEN_TAKEN, PIPELINE, RUN, kind_of, name_of


def lock_lease(connection: Connection, database: Database, subject: str) -> Any:
    """Returns the row of a subject's lease, and the time as `now`; it is locked until the end of the transaction.

    The row is created if its kind is one of `MADE_WHEN_TAKEN`. Raises `RunNotFound`, `PipelineNotFound`; `LedgerError` for a
    text that is no subject.
    """
    query = (
        select(*Lease.__table__.columns, database.now().label("now"))
        .where(Lease.subject == subject)
        .with_for_update(key_share=True)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        _require_makeable(subject)
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        first = dialect.insert(Lease).values(subject=subject, term=0, ttl_ms=0, expires_at=0)
        connection.execute(first.on_conflict_do_nothing())
        row = connection.execute(query).one()
    return row


def create_lease(connection: Connection, subject: str, now: int, run: str | None = None) -> None:
    """Creates a free lease with what it is for.

    now: milliseconds since 1970.
    run: if it is a run's.
    """
    row = {"subject": subject, "run": run, "term": 0, "ttl_ms": 0, "expires_at": now}
    connection.execute(insert(Lease), row)


def free_lease(connection: Connection, subject: str, now: int) -> None:
    """Frees a lease; the fence of its last holder is no longer valid."""
    connection.execute(
        update(Lease).where(Lease.subject == subject).values(**holder_columns(None), expires_at=now),
    )


def live_holder_of(connection: Connection, database: Database, subject: str) -> Holder | None:
    """Returns who holds a subject's lease; None if it is free, has expired, or its process has ended."""
    row = connection.execute(select(*Lease.__table__.columns).where(Lease.subject == subject)).one_or_none()
    return None if row is None else live_holder(row, database.time(connection))


def _require_makeable(subject: str) -> None:
    kind = kind_of(subject)
    name = name_of(subject)
    if kind == RUN:
        raise RunNotFound(f"there is no run {name!r} in this ledger")
    if kind == PIPELINE:
        raise missing_pipeline(name)
    if kind not in MADE_WHEN_TAKEN:
        raise LedgerError(
            f"{subject!r} is no subject of a lease; right: run/toy-1, pipeline/line-1, sweep/toy-1, queue"
        )


def missing_pipeline(pipeline: str) -> PipelineNotFound:
    """Returns the error for a pipeline that does not exist."""
    return PipelineNotFound(f"there is no pipeline {pipeline!r} in this ledger; see `yatt pipeline list`")
