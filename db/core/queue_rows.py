"""The rows of the queue's tables, as they are read and written. Times are milliseconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass

from db.core.holder import Holder
from db.core.queue_models import QueueAllocation, QueueEntry, QueueForecast, QueueOutage


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
    gpus: bool
    starts: int
    start_term: int

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
OUTAGE = [QueueOutage.__table__.columns[name] for name in OutageRow.__slots__]
FORECAST = [QueueForecast.__table__.columns[name] for name in ForecastRow.__slots__]
