"""What the queue's tables say: entries, allocations, outages, forecasts, and who schedules. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, or_, select

from db.core.engine import Database
from db.core.holder import holder_of
from db.core.models import Lease
from db.core.queue_models import QueueOutage
from db.core.queue_rows import (
    OUTAGE,
    AllocationRow,
    EntryRow,
    ForecastRow,
    OutageRow,
    QueueRows,
    SchedulerRow,
)
from db.core.subjects import QUEUE, subject_of


class QueueReader:
    """Reads the queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def rows(self) -> QueueRows:
        """Returns the queue as it is now."""
        with self._database.read() as connection:
            now = self._database.time(connection)
            entries = select(*EntryRow.__table__.columns).where(EntryRow.ended_at.is_(None)).order_by(EntryRow.seq)
            held = (
                select(*AllocationRow.__table__.columns)
                .where(AllocationRow.ended_at.is_(None))
                .order_by(AllocationRow.run)
            )
            away = select(*OUTAGE).where(QueueOutage.ended_at.is_(None)).order_by(QueueOutage.pool, QueueOutage.device)
            return QueueRows(
                now,
                tuple(EntryRow(**row._mapping) for row in connection.execute(entries)),
                _allocations(connection, held),
                tuple(OutageRow(**row._mapping) for row in connection.execute(away)),
            )

    def entry(self, run: str) -> EntryRow | None:
        """Returns a run's entry; None if it was never submitted."""
        with self._database.read() as connection:
            row = connection.execute(select(*EntryRow.__table__.columns).where(EntryRow.run == run)).one_or_none()
        return None if row is None else EntryRow(**row._mapping)

    def ended(self, limit: int) -> tuple[EntryRow, ...]:
        """Returns the entries that ended last, newest first."""
        query = select(*EntryRow.__table__.columns).where(EntryRow.ended_at.is_not(None))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(EntryRow.ended_at.desc(), EntryRow.run).limit(limit))
            return tuple(EntryRow(**row._mapping) for row in rows)

    def allocations(self, since: int = 0, runs: Sequence[str] | None = None) -> tuple[AllocationRow, ...]:
        """Returns the allocations that are open or ended at a time or later, in the order of their beginning."""
        query = select(*AllocationRow.__table__.columns).where(
            or_(AllocationRow.ended_at.is_(None), AllocationRow.ended_at >= since)
        )
        if runs is not None:
            query = query.where(AllocationRow.run.in_(runs))
        with self._database.read() as connection:
            return _allocations(connection, query.order_by(AllocationRow.started_at, AllocationRow.run))

    def forecasts(self, runs: Sequence[str] | None = None) -> tuple[ForecastRow, ...]:
        """Returns predictions, by run and time."""
        query = select(*ForecastRow.__table__.columns).order_by(ForecastRow.run, ForecastRow.tenth)
        with self._database.read() as connection:
            rows = connection.execute(query if runs is None else query.where(ForecastRow.run.in_(runs)))
            return tuple(ForecastRow(**row._mapping) for row in rows)

    def scheduler(self) -> SchedulerRow | None:
        """Returns who schedules; None before the queue was first used."""
        columns = (*Lease.__table__.columns, self._database.now().label("now"))
        query = select(*columns).where(Lease.subject == subject_of(QUEUE))
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else SchedulerRow(row.term, holder_of(row), (row.expires_at - row.now) / 1000)


def _allocations(connection: Connection, query: Select[Any]) -> tuple[AllocationRow, ...]:
    return tuple(AllocationRow(**row._mapping) for row in connection.execute(query))
