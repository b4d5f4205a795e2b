"""Settles a ledger that was loaded from a cut: nobody drives anything, and the trackers get what their copies lack.

Works in the loader's transaction, on the tables of this version. The cut shows drivers in the middle of their work; none
of them exists where the rows are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, select, true, update

from db.core.engine import Database
from db.core.holder import holder_columns
from db.core.models import (
    AllocationRow,
    Base,
    DriverSessionTable,
    EntryRow,
    JobRow,
    Lease,
    Outbox,
    RunTable,
)
from db.write import pipelines
from db.write.events import append, lock_run
from db.write.lease import DRIVER_LOST, LOST
from db.write.outbox import MLFLOW
from db.write.phases import LOST_DRIVER, fail_open
from db.write.queueing import RUN, RUNNING, WAITING

RESTORED = "restored"
"""The kind of the link that says from which backup a run was restored."""
WITH_PATHS = (
    (Outbox.__tablename__, "payload", Outbox.delivered_at.is_(None)),
    (JobRow.__table__.name, "outputs", true()),
)
"""Tables, their columns that may contain paths below the home, and which rows matter. Specs may, too, but are part of the audit
chain and stay as they are."""


@dataclass(frozen=True, slots=True)
class BackupOrigin:
    """Where loaded rows come from.

    backup: id of the backup.
    cut_at: the moment of the cut, milliseconds since 1970.
    old_home, new_home: absolute paths of the home folders.
    tracked_at: the moment of the copy of MLflow's store that belongs to the rows, milliseconds since 1970; None if MLflow
        keeps its own store, which already has what was delivered.
    """

    backup: str
    cut_at: int
    old_home: str
    new_home: str
    tracked_at: int | None = None


def settle(connection: Connection, database: Database, origin: BackupOrigin) -> None:
    """Closes what was open in the cut, and records in each run's audit chain that it was restored."""
    now = database.time(connection)
    _close(connection, now)
    if origin.tracked_at is not None:
        # Sent again: a row may have been delivered after the store was copied. A point that is sent twice counts once.
        late = (Outbox.lane == MLFLOW, Outbox.delivered_at >= origin.tracked_at)
        connection.execute(update(Outbox).where(*late).values(delivered_at=None, claimed_term=None))
    if origin.old_home != origin.new_home:
        for name, column, which in WITH_PATHS:
            _rewrite(
                connection=connection,
                table=Base.metadata.tables[name],
                column=column,
                which=which,
                origin=origin,
            )
    driven = select(RunTable.id, Lease.term).join(Lease, Lease.run == RunTable.id).order_by(RunTable.id)
    for run, term in connection.execute(driven).all():
        fail_open(connection=connection, run=run, reason=DRIVER_LOST, now=now, failure_class=LOST_DRIVER)
        body = {"backup": origin.backup, "cut_at": origin.cut_at, "term": term}
        append(connection, lock_run(connection, database, run), RESTORED, body)


def _close(connection: Connection, now: int) -> None:
    connection.execute(update(Lease).where(Lease.holder.is_not(None)).values(**holder_columns(None), expires_at=now))
    open_session = DriverSessionTable.ended_at.is_(None)
    connection.execute(update(DriverSessionTable).where(open_session).values(ended_at=now, outcome=LOST))
    lost = {"state": pipelines.LOST, "ended_at": now, "reason": "restored from a backup"}
    connection.execute(update(JobRow).where(JobRow.state == pipelines.RUNNING).values(**lost))
    open_stretch = AllocationRow.ended_at.is_(None)
    connection.execute(update(AllocationRow).where(open_stretch).values(ended_at=now, outcome=RESTORED))
    waits = {"state": WAITING, "reason": "restored from a backup"}
    driven = EntryRow.state == RUNNING
    connection.execute(update(EntryRow).where(driven, EntryRow.wanted == RUN).values(waiting_since=now))
    connection.execute(update(EntryRow).where(driven).values(**waits))


def _rewrite(
    connection: Connection, table: Table, column: str, which: ColumnElement[bool], origin: BackupOrigin
) -> None:
    """Replaces the old home's path in a JSON column of some rows."""
    keys = list(table.primary_key.columns)
    for row in connection.execute(select(*keys, table.c[column]).where(which)).all():
        *key, value = row
        moved = moved_paths(value, origin.old_home, origin.new_home)
        if moved != value:
            same = [own == given for own, given in zip(keys, key, strict=True)]
            connection.execute(update(table).where(*same).values({column: moved}))


def moved_paths(value: Any, old: str, new: str) -> Any:
    """Returns a JSON value in which every text that is a path below `old` is one below `new`."""
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(old.rstrip("/") + "/") else value
    if isinstance(value, dict):
        return {name: moved_paths(item, old, new) for name, item in value.items()}
    if isinstance(value, list):
        return [moved_paths(item, old, new) for item in value]
    return value
