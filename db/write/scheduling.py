"""The scheduler's writes: the periods during which runs hold devices.

Every write carries the fence of the lease `queue`. Once another scheduler has taken the lease, a write raises `Fenced` and
changes nothing, so that two schedulers can never give away the same devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from db.core.engine import Database, Fence
from db.core.errors import Conflict
from db.core.models import RunWait
from db.core.queue_rows import AllocationRow, EntryRow, ForecastRow
from db.core.subjects import QUEUE
from db.write.events import append, lock_run
from db.write.queueing import ENDED, PARKED, RUN, RUNNING, WAITING
from db.write.runs import STOP, desire

STARTED = "queue_started"
STOPPING = "queue_stopping"
RELEASED = "queue_released"
LEFT = "queue_ended"
NEVER = float("inf")


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
    """Writes what the scheduler decides."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def allocate(self, fence: Fence, grant: Grant, lease_term: int) -> AllocationRow:
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
            newest = select(func.coalesce(func.max(AllocationRow.number), 0)).where(AllocationRow.run == grant.run)
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
            connection.execute(insert(AllocationRow), asdict(row))
            waited = entry.waited_ms + (0 if entry.waiting_since is None else now - entry.waiting_since)
            own = update(EntryRow).where(EntryRow.run == grant.run)
            connection.execute(own.values(state=RUNNING, reason="", waiting_since=None, waited_ms=waited))
            body = {"pool": row.pool, "devices": row.devices, "number": row.number, "term": fence.term}
            append(connection, head, STARTED, body)
        return row

    def note_driver(self, fence: Fence, held: AllocationRow, pid: int, process_start: int, session_term: int) -> None:
        """Records the driver's process.

        session_term: the term of the run's newest session; drivers that were started since it began are counted.

        Raises `Fenced`.
        """
        starts = held.starts + 1 if held.start_term == session_term else 1
        with self._fenced(fence) as (connection, _):
            connection.execute(
                _own(held).values(pid=pid, process_start=process_start, starts=starts, start_term=session_term)
            )

    def note_stop(self, fence: Fence, held: AllocationRow, reason: str, within_seconds: float | None) -> None:
        """Records that a run is to give its devices back, and asks its driver to stop. Raises `Fenced`.

        within_seconds: as in `Runs.ask_to_stop`; an earlier deadline stays.
        """
        with self._fenced(fence) as (connection, now):
            body = {"number": held.number, "reason": reason, "term": fence.term}
            append(connection, lock_run(connection, self._database, held.run), STOPPING, body)
            connection.execute(_own(held).values(stop_asked_at=now, stop_reason=reason))
            self._ask_to_stop(connection, held.run, reason, within_seconds)

    def ask_again(self, fence: Fence, held: AllocationRow, within_seconds: float | None) -> None:
        """Repeats a request to stop that a driver has not got. Raises `Fenced`."""
        with self._fenced(fence) as (connection, _):
            self._ask_to_stop(connection, held.run, held.stop_reason or "", within_seconds)

    def release(
        self,
        fence: Fence,
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
            connection.execute(update(EntryRow).where(EntryRow.run == held.run).values(**values))
            body = {"number": held.number, "outcome": outcome, "ends": ends, "term": fence.term}
            append(connection, head, RELEASED, body)
            if cost is not None:
                own = update(ForecastRow).where(ForecastRow.run == held.run, ForecastRow.ended_at.is_(None))
                connection.execute(own.values(ended_at=now, actual_cost=cost(now)))

    def unpark(self, fence: Fence, run: str) -> None:
        """Lets a run whose driver waited without devices be started again. Raises `Fenced`."""
        with self._fenced(fence) as (connection, _):
            own = update(EntryRow).where(EntryRow.run == run, EntryRow.not_before == PARKED)
            connection.execute(own.values(not_before=None))

    def end(self, fence: Fence, run: str, outcome: str) -> None:
        """Ends the entry of a run that holds no devices. Raises `Fenced`."""
        with self._fenced(fence) as (connection, now):
            values = {"state": ENDED, "ended_at": now, "outcome": outcome, "waiting_since": None}
            head = lock_run(connection, self._database, run)
            connection.execute(update(EntryRow).where(EntryRow.run == run).values(**values))
            append(connection, head, LEFT, {"outcome": outcome, "term": fence.term})

    def note_reasons(self, fence: Fence, reasons: dict[str, str]) -> None:
        """Records why runs wait, for people. Raises `Fenced`."""
        with self._fenced(fence) as (connection, _):
            for run, reason in reasons.items():
                own = update(EntryRow).where(EntryRow.run == run, EntryRow.state == WAITING)
                connection.execute(own.values(reason=reason))

    def note_forecast(self, fence: Fence, row: ForecastRow) -> None:
        """Records a prediction; the first one of each tenth stands. Raises `Fenced`."""
        with self._fenced(fence) as (connection, _):
            own = (ForecastRow.run == row.run, ForecastRow.tenth == row.tenth)
            if connection.execute(select(ForecastRow.tenth).where(*own)).one_or_none() is None:
                values = asdict(row)
                connection.execute(insert(ForecastRow), values)

    def _ask_to_stop(self, connection: Connection, run: str, reason: str, within_seconds: float | None) -> None:
        row = lock_run(connection, self._database, run)
        deadline = NEVER if within_seconds is None else row.now + within_seconds * 1000
        if row.desired_state != STOP or deadline < (NEVER if row.stop_at is None else row.stop_at):
            desire(connection=connection, row=row, state=STOP, reason=reason, within_seconds=within_seconds)

    @contextmanager
    def _fenced(self, fence: Fence) -> Iterator[tuple[Connection, int]]:
        fence.name_as(QUEUE)
        with self._database.fenced(fence) as (connection, now):
            yield connection, now


def _has_returned_devices(connection: Connection, run: str) -> bool:
    query = select(RunWait.run).where(RunWait.run == run, RunWait.returned_at.is_not(None))
    return connection.execute(query).one_or_none() is not None


def _own(held: AllocationRow) -> Any:
    return update(AllocationRow).where(AllocationRow.run == held.run, AllocationRow.number == held.number)


def _entry(connection: Connection, run: str) -> Any:
    return connection.execute(select(*EntryRow.__table__.columns).where(EntryRow.run == run)).one_or_none()


def _open(connection: Connection) -> list[AllocationRow]:
    query = select(*AllocationRow.__table__.columns).where(AllocationRow.ended_at.is_(None))
    return [AllocationRow(**row._mapping) for row in connection.execute(query)]
