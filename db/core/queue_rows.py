"""The rows of the queue, as they are read and written, and most of its tables. Times are milliseconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Index, false, text

from db.core.holder import Holder
from db.core.queue_models import QueueOutage
from db.core.table_rows import Stored, TableRow, stored, stored_key, stored_run


class EntryRow(
    TableRow,
    name="queue_entry",
    parts=(
        Index(
            "queue_entry_open_index",
            "state",
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    ),
):
    """A run that was submitted to the queue.

    seq: position by submission.
    pools: names, separated by commas, the preferred one first.
    checkpoints: `spec` or `auto`: whose interval it uses.
    wanted: run, hold or remove: what people want of it.
    state: waiting, running (it holds devices) or ended.
    waited_ms: time that it has waited for devices, until waiting_since.
    failures: starts in a row that came to nothing.
    until: the iteration after which its drivers stop; None: the run's target.
    """

    run: Stored[str] = stored_run()
    seq: Stored[int]
    pools: Stored[str]
    owner: Stored[str]
    project: Stored[str]
    priority: Stored[int]
    devices: Stored[int]
    checkpoints: Stored[str]
    wanted: Stored[str]
    state: Stored[str]
    reason: Stored[str]
    submitted_at: Stored[int]
    waited_ms: Stored[int]
    waiting_since: Stored[int | None]
    not_before: Stored[int | None]
    failures: Stored[int]
    ended_at: Stored[int | None]
    outcome: Stored[str | None]
    until: Stored[int | None] = stored(default=None)

    def waited(self, now: int) -> float:
        """Returns the seconds for which it has waited for devices."""
        return (self.waited_ms + (0 if self.waiting_since is None else now - self.waiting_since)) / 1000


class AllocationRow(
    TableRow,
    name="queue_allocation",
    parts=(
        Index(
            "queue_allocation_open_index",
            "pool",
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    ),
):
    """A period during which a run holds devices of a pool, until ended_at.

    devices: their numbers, separated by commas.
    pools: those that the run could use.
    lease_term: term of the run's lease before the start; a driver that took it has a newer one.
    pid: the driver's process, once it is started.
    gpus: True if the devices are GPUs of this machine, whose numbers mean the same in all pools.
    starts: drivers started in a row since a session began; start_term is the term of the run's newest session then.
    price: of a device for an hour, at the start.
    outcome: how it ended.
    """

    run: Stored[str] = stored_run()
    number: Stored[int] = stored_key()
    pool: Stored[str]
    pools: Stored[str]
    owner: Stored[str]
    project: Stored[str]
    priority: Stored[int]
    devices: Stored[str]
    level: Stored[int]
    backfilled: Stored[bool]
    term: Stored[int]
    lease_term: Stored[int]
    pid: Stored[int | None]
    process_start: Stored[int | None]
    price: Stored[float | None]
    currency: Stored[str | None]
    started_at: Stored[int]
    stop_asked_at: Stored[int | None]
    stop_reason: Stored[str | None]
    ended_at: Stored[int | None]
    outcome: Stored[str | None]
    gpus: Stored[bool] = stored(server_default=false())
    starts: Stored[int] = stored(server_default="0")
    start_term: Stored[int] = stored(server_default="0")

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the devices."""
        return tuple(int(number) for number in self.devices.split(","))


class ForecastRow(TableRow, name="queue_forecast"):
    """A prediction of a run's end and cost, made after a tenth, two tenths, ... of its iterations, and how it turned out.

    cost: of the whole run, in the currency of its devices.
    end_at, ended_at: predicted and actual end.
    """

    run: Stored[str] = stored_run()
    tenth: Stored[int] = stored_key()
    iteration: Stored[int]
    made_at: Stored[int]
    ettr: Stored[float]
    end_at: Stored[int]
    cost: Stored[float | None]
    ended_at: Stored[int | None]
    actual_cost: Stored[float | None]


@dataclass(frozen=True, slots=True)
class OutageRow:
    """A device that cannot be used, or soon cannot."""

    pool: str
    device: int
    announced_at: int
    lost_at: int
    by: str


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


OUTAGE = [QueueOutage.__table__.columns[name] for name in OutageRow.__slots__]
