"""The scheduler's writes: its lease, and the stretches for which runs hold devices.

Every write carries the term of the scheduler's lease. Once another scheduler has taken the lease, a write raises `Fenced` and
changes nothing, so that two schedulers can never give away the same devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from db.core.engine import Database
from db.core.errors import Conflict, Fenced, SchedulerHeld
from db.core.holder import Holder, holder_columns, live_holder
from db.core.models import RunWait
from db.core.queue_models import QueueAllocation, QueueEntry, QueueForecast, QueueScheduler
from db.core.queue_rows import ALLOCATION, AllocationRow, ForecastRow
from db.write.events import append, lock_run
from db.write.queueing import ENDED, PARKED, RUN, RUNNING, WAITING, lock_queue
from db.write.runs import STOP, desire

STARTED = "queue_started"
STOPPING = "queue_stopping"
RELEASED = "queue_released"
LEFT = "queue_ended"
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class SchedulerFence:
    """The right to schedule, valid as long as its term is the newest."""

    term: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Devices that a run gets."""

    run: str
    pool: str
    devices: tuple[int, ...]
    level: int
    backfilled: bool
    gpus: bool = False
    price: float | None = None
    currency: str | None = None


class Scheduling:
    """Takes the scheduler's lease, and writes what the scheduler decides."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def lead(self, holder: Holder, ttl_seconds: float) -> SchedulerFence:
        """Takes the lease if it is free, expired, or held by a process that is gone. Raises `SchedulerHeld`."""
        with self._database.write() as connection:
            now = self._database.time(connection)
            row = lock_queue(connection)
            if (before := live_holder(row, now)) is not None:
                raise SchedulerHeld(f"the queue is scheduled by {before.text}")
            fence = SchedulerFence(row.term + 1)
            connection.execute(
                update(QueueScheduler).values(
                    term=fence.term,
                    **holder_columns(holder),
                    expires_at=now + round(ttl_seconds * 1000),
                )
            )
        return fence

    def renew(self, fence: SchedulerFence, ttl_seconds: float) -> None:
        """Extends the lease. Raises `Fenced`."""
        with self._fenced(fence) as (connection, now):
            connection.execute(update(QueueScheduler).values(expires_at=now + round(ttl_seconds * 1000)))

    def resign(self, fence: SchedulerFence) -> None:
        """Releases the lease. Raises `Fenced`."""
        with self._fenced(fence) as (connection, now):
            connection.execute(update(QueueScheduler).values(**holder_columns(None), expires_at=now))

    def allocate(self, fence: SchedulerFence, grant: Grant, lease_term: int) -> AllocationRow:
        """Gives a waiting run devices, all at once.

        lease_term: the term of the run's lease now.

        Raises `Fenced`, and `Conflict` if a device is taken, or the run does not wait.
        """
        with self._fenced(fence) as (connection, now):
            head = lock_run(connection, self._database, grant.run)
            entry = _entry(connection, grant.run)
            if entry is None or entry.state != WAITING or entry.wanted != RUN:
                raise Conflict(f"run {grant.run} does not wait for devices")
            for other in _open(connection):
                same = other.pool == grant.pool or (other.gpus and grant.gpus)
                if same and set(grant.devices).intersection(other.numbers):
                    raise Conflict(f"devices {other.devices} of {grant.pool} are held by run {other.run}")
            newest = select(func.coalesce(func.max(QueueAllocation.number), 0)).where(QueueAllocation.run == grant.run)
            row = AllocationRow(
                run=grant.run,
                number=int(connection.execute(newest).scalar_one()) + 1,
                pool=grant.pool,
                pools=entry.pools,
                owner=entry.owner,
                project=entry.project,
                priority=entry.priority,
                devices=",".join(map(str, grant.devices)),
                level=grant.level,
                backfilled=grant.backfilled,
                term=fence.term,
                lease_term=lease_term,
                pid=None,
                process_start=None,
                price=grant.price,
                currency=grant.currency,
                started_at=now,
                stop_asked_at=None,
                stop_reason=None,
                ended_at=None,
                outcome=None,
                gpus=grant.gpus,
                starts=0,
                start_term=0,
            )
            connection.execute(insert(QueueAllocation), {name: getattr(row, name) for name in AllocationRow.__slots__})
            waited = entry.waited_ms + (0 if entry.waiting_since is None else now - entry.waiting_since)
            own = update(QueueEntry).where(QueueEntry.run == grant.run)
            connection.execute(own.values(state=RUNNING, reason="", waiting_since=None, waited_ms=waited))
            body = {"pool": row.pool, "devices": row.devices, "number": row.number, "term": fence.term}
            append(connection, head, STARTED, body)
        return row

    def note_driver(
        self, fence: SchedulerFence, held: AllocationRow, pid: int, process_start: int, session_term: int
    ) -> None:
        """Records the driver's process.

        session_term: the term of the run's newest session; drivers that were started since it began are counted.

        Raises `Fenced`.
        """
        starts = held.starts + 1 if held.start_term == session_term else 1
        with self._fenced(fence) as (connection, _):
            connection.execute(
                _own(held).values(pid=pid, process_start=process_start, starts=starts, start_term=session_term)
            )

    def note_stop(self, fence: SchedulerFence, held: AllocationRow, reason: str, within_seconds: float | None) -> None:
        """Records that a run is to give its devices back, and asks its driver to stop. Raises `Fenced`.

        within_seconds: as in `Runs.ask_to_stop`; an earlier deadline stays.
        """
        with self._fenced(fence) as (connection, now):
            body = {"number": held.number, "reason": reason, "term": fence.term}
            append(connection, lock_run(connection, self._database, held.run), STOPPING, body)
            connection.execute(_own(held).values(stop_asked_at=now, stop_reason=reason))
            self._ask_to_stop(connection, held.run, reason, within_seconds)

    def ask_again(self, fence: SchedulerFence, held: AllocationRow, within_seconds: float | None) -> None:
        """Repeats a request to stop that a driver has not got. Raises `Fenced`."""
        with self._fenced(fence) as (connection, _):
            self._ask_to_stop(connection, held.run, held.stop_reason or "", within_seconds)

    def release(
        self,
        fence: SchedulerFence,
        held: AllocationRow,
        outcome: str,
        *,
        ends: bool = False,
        failures: int = 0,
        pause_seconds: float = 0.0,
        parks: bool = False,
        cost: Callable[[int], float | None] | None = None,
    ) -> None:
        """Takes a run's devices back.

        ends: True if the run leaves the queue; otherwise it waits again.
        failures: starts in a row that came to nothing.
        pause_seconds: time for which it is not started again.
        parks: the run's driver has given the devices back and waits without them, so no other one is started until `unpark`.
            Nothing happens if it has taken them again.
        cost: takes the time (milliseconds), and returns what the run has cost, which is recorded beside its predictions.

        Raises `Fenced`.
        """
        with self._fenced(fence) as (connection, now):
            head = lock_run(connection, self._database, held.run)
            if parks and not _has_returned_devices(connection, held.run):
                return
            connection.execute(_own(held).values(ended_at=now, outcome=outcome))
            entry = _entry(connection, held.run)
            values: dict[str, Any] = {"state": WAITING, "reason": outcome, "failures": failures}
            values |= {
                "waiting_since": now if entry is not None and entry.wanted == RUN else None,
                "not_before": now + round(pause_seconds * 1000) if pause_seconds else None,
            }
            if parks:
                values["not_before"] = PARKED
            if ends:
                values |= {"state": ENDED, "ended_at": now, "outcome": outcome, "waiting_since": None}
            connection.execute(update(QueueEntry).where(QueueEntry.run == held.run).values(**values))
            body = {"number": held.number, "outcome": outcome, "ends": ends, "term": fence.term}
            append(connection, head, RELEASED, body)
            if cost is not None:
                own = update(QueueForecast).where(QueueForecast.run == held.run, QueueForecast.ended_at.is_(None))
                connection.execute(own.values(ended_at=now, actual_cost=cost(now)))

    def unpark(self, fence: SchedulerFence, run: str) -> None:
        """Lets a run whose driver waited without devices be started again. Raises `Fenced`."""
        with self._fenced(fence) as (connection, _):
            own = update(QueueEntry).where(QueueEntry.run == run, QueueEntry.not_before == PARKED)
            connection.execute(own.values(not_before=None))

    def end(self, fence: SchedulerFence, run: str, outcome: str) -> None:
        """Ends the entry of a run that holds no devices. Raises `Fenced`."""
        with self._fenced(fence) as (connection, now):
            values = {"state": ENDED, "ended_at": now, "outcome": outcome, "waiting_since": None}
            head = lock_run(connection, self._database, run)
            connection.execute(update(QueueEntry).where(QueueEntry.run == run).values(**values))
            append(connection, head, LEFT, {"outcome": outcome, "term": fence.term})

    def note_reasons(self, fence: SchedulerFence, reasons: dict[str, str]) -> None:
        """Records why runs wait, for people. Raises `Fenced`."""
        with self._fenced(fence) as (connection, _):
            for run, reason in reasons.items():
                own = update(QueueEntry).where(QueueEntry.run == run, QueueEntry.state == WAITING)
                connection.execute(own.values(reason=reason))

    def note_forecast(self, fence: SchedulerFence, row: ForecastRow) -> None:
        """Records a prediction; the first one of each tenth stands. Raises `Fenced`."""
        with self._fenced(fence) as (connection, _):
            own = (QueueForecast.run == row.run, QueueForecast.tenth == row.tenth)
            if connection.execute(select(QueueForecast.tenth).where(*own)).one_or_none() is None:
                values = {name: getattr(row, name) for name in ForecastRow.__slots__}
                connection.execute(insert(QueueForecast), values)

    def _ask_to_stop(self, connection: Connection, run: str, reason: str, within_seconds: float | None) -> None:
        row = lock_run(connection, self._database, run)
        deadline = NEVER if within_seconds is None else row.now + within_seconds * 1000
        if row.desired_state != STOP or deadline < (NEVER if row.stop_at is None else row.stop_at):
            desire(connection=connection, row=row, state=STOP, reason=reason, within_seconds=within_seconds)

    @contextmanager
    def _fenced(self, fence: SchedulerFence) -> Iterator[tuple[Connection, int]]:
        columns = (QueueScheduler.term, QueueScheduler.holder, self._database.now().label("now"))
        with self._database.write() as connection:
            row = connection.execute(select(*columns).with_for_update()).one_or_none()
            if row is None or row.term != fence.term or row.holder is None:
                raise Fenced(f"the scheduler's term {fence.term} has ended")
            yield connection, int(row.now)


def _has_returned_devices(connection: Connection, run: str) -> bool:
    query = select(RunWait.run).where(RunWait.run == run, RunWait.returned_at.is_not(None))
    return connection.execute(query).one_or_none() is not None


def _own(held: AllocationRow) -> Any:
    return update(QueueAllocation).where(QueueAllocation.run == held.run, QueueAllocation.number == held.number)


def _entry(connection: Connection, run: str) -> Any:
    return connection.execute(select(*QueueEntry.__table__.columns).where(QueueEntry.run == run)).one_or_none()


def _open(connection: Connection) -> list[AllocationRow]:
    query = select(*ALLOCATION).where(QueueAllocation.ended_at.is_(None))
    return [AllocationRow(**row._mapping) for row in connection.execute(query)]
