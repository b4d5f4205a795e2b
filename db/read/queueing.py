"""What the queue's tables say: entries, allocations, outages, forecasts, and who schedules. Reads only.

Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, or_, select

from db.core.engine import Database
from db.core.holder import Holder, holder_of
from db.core.queue_models import QueueAllocation, QueueEntry, QueueForecast, QueueOutage, QueueScheduler


@dataclass(frozen=True, slots=True)
class EntryRow:
    """A run in the queue; see `QueueEntry`."""

    run: str
    seq: int
    pools: str
    owner: str
    project: str
    priority: int
    devices: int
    checkpoints: str
    wanted: str
    state: str
    reason: str
    submitted_at: int
    waited_ms: int
    waiting_since: int | None
    not_before: int | None
    failures: int
    ended_at: int | None
    outcome: str | None

    def waited(self, now: int) -> float:
        """Returns the seconds for which it has waited for devices."""
        return (self.waited_ms + (0 if self.waiting_since is None else now - self.waiting_since)) / 1000


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """A stretch for which a run holds devices; see `QueueAllocation`."""

    run: str
    number: int
    pool: str
    pools: str
    owner: str
    project: str
    priority: int
    devices: str
    level: int
    backfilled: bool
    term: int
    lease_term: int
    pid: int | None
    process_start: int | None
    price: float | None
    currency: str | None
    started_at: int
    stop_asked_at: int | None
    stop_reason: str | None
    ended_at: int | None
    outcome: str | None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the devices."""
        return tuple(int(number) for number in self.devices.split(","))


@dataclass(frozen=True, slots=True)
class OutageRow:
    """A device that cannot be used, or soon cannot."""

    pool: str
    device: int
    announced_at: int
    lost_at: int
    by: str


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """A prediction, and how it turned out; see `QueueForecast`."""

    run: str
    tenth: int
    iteration: int
    made_at: int
    ettr: float
    end_at: int
    cost: float | None
    ended_at: int | None
    actual_cost: float | None


@dataclass(frozen=True, slots=True)
class SchedulerRow:
    """Who schedules.

    holder: None while nobody does.
    expires_in: seconds; negative once its lease has expired.
    """

    term: int
    holder: Holder | None
    expires_in: float


@dataclass(frozen=True, slots=True)
class QueueRows:
    """The queue at a moment.

    open: entries that have not ended, in the order of their submission.
    held: open allocations.
    """

    now: int
    open: tuple[EntryRow, ...]
    held: tuple[AllocationRow, ...]
    outages: tuple[OutageRow, ...]


ENTRY = [QueueEntry.__table__.columns[name] for name in EntryRow.__slots__]
ALLOCATION = [QueueAllocation.__table__.columns[name] for name in AllocationRow.__slots__]
_OUTAGE = [QueueOutage.__table__.columns[name] for name in OutageRow.__slots__]
_FORECAST = [QueueForecast.__table__.columns[name] for name in ForecastRow.__slots__]


class QueueReader:
    """Reads the queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def rows(self) -> QueueRows:
        """Returns the queue as it is now."""
        with self._database.read() as connection:
            now = int(connection.execute(select(self._database.now())).scalar_one())
            entries = select(*ENTRY).where(QueueEntry.ended_at.is_(None)).order_by(QueueEntry.seq)
            held = select(*ALLOCATION).where(QueueAllocation.ended_at.is_(None)).order_by(QueueAllocation.run)
            away = select(*_OUTAGE).where(QueueOutage.ended_at.is_(None)).order_by(QueueOutage.pool, QueueOutage.device)
            return QueueRows(
                now,
                tuple(EntryRow(**row._mapping) for row in connection.execute(entries)),
                _allocations(connection, held),
                tuple(OutageRow(**row._mapping) for row in connection.execute(away)),
            )

    def entry(self, run: str) -> EntryRow | None:
        """Returns a run's entry; None if it was never submitted."""
        with self._database.read() as connection:
            row = connection.execute(select(*ENTRY).where(QueueEntry.run == run)).one_or_none()
        return None if row is None else EntryRow(**row._mapping)

    def ended(self, limit: int) -> tuple[EntryRow, ...]:
        """Returns the entries that ended last, newest first."""
        query = select(*ENTRY).where(QueueEntry.ended_at.is_not(None))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(QueueEntry.ended_at.desc(), QueueEntry.run).limit(limit))
            return tuple(EntryRow(**row._mapping) for row in rows)

    def allocations(self, since: int = 0, runs: Sequence[str] | None = None) -> tuple[AllocationRow, ...]:
        """Returns the stretches that are open or ended at a time or later, in the order of their beginning."""
        query = select(*ALLOCATION).where(or_(QueueAllocation.ended_at.is_(None), QueueAllocation.ended_at >= since))
        if runs is not None:
            query = query.where(QueueAllocation.run.in_(runs))
        with self._database.read() as connection:
            return _allocations(connection, query.order_by(QueueAllocation.started_at, QueueAllocation.run))

    def forecasts(self, runs: Sequence[str] | None = None) -> tuple[ForecastRow, ...]:
        """Returns predictions, by run and time."""
        query = select(*_FORECAST).order_by(QueueForecast.run, QueueForecast.tenth)
        with self._database.read() as connection:
            rows = connection.execute(query if runs is None else query.where(QueueForecast.run.in_(runs)))
            return tuple(ForecastRow(**row._mapping) for row in rows)

    def scheduler(self) -> SchedulerRow | None:
        """Returns who schedules; None if nobody ever has."""
        query = select(*QueueScheduler.__table__.columns, self._database.now().label("now"))
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else SchedulerRow(row.term, holder_of(row), (row.expires_at - row.now) / 1000)


def _allocations(connection: Connection, query: Select[tuple[object, ...]]) -> tuple[AllocationRow, ...]:
    return tuple(AllocationRow(**row._mapping) for row in connection.execute(query))
