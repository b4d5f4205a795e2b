"""Attempts at phases: the intent is recorded before the work is dispatched, and the budget is charged at dispatch.

A driver's crash is charged to a class of its own: the next holder of the lease marks open attempts as failed (see
`db.write.lease`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from db.core.engine import Database, Fence
from db.core.errors import OutOfOrder
from db.core.made_once import ITERATION, given, matching
from db.core.models import AttemptRow as AttemptRow
from db.core.models import Event, Iteration, RunTable, Shard
from db.write.events import append, lock_run, signature

PLANNED = "PLANNED"
DISPATCHED = "DISPATCHED"
DONE = "DONE"
FAILED = "FAILED"
LOST_DRIVER = "driver_lost"
"""Failure class of an attempt whose driver ended without an error of its own: the phase is not to blame."""
FORGIVEN = "forgiven"
"""Kind of the event that clears a phase's budget of its failed attempts; their rows stay unchanged."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a phase; number counts from 1, across drivers."""

    run: str
    branch: int
    iteration: int
    phase: str
    number: int

    def __str__(self) -> str:
        return f"{self.run}/b{self.branch}/i{self.iteration}/{self.phase} attempt {self.number}"


# Statements of every phase, made once.
_OF_PHASE = matching(AttemptRow, *ITERATION, "phase")
_LAST_NUMBER = select(func.max(AttemptRow.number)).where(*_OF_PHASE)
_CHANGE = update(AttemptRow).where(*_OF_PHASE, *matching(AttemptRow, "number"))
_DISPATCH = _CHANGE.where(AttemptRow.state == PLANNED).values(state=DISPATCHED, dispatched_at=bindparam("now"))
_FINISH = _CHANGE.where(AttemptRow.state == DISPATCHED).values(
    state=DONE,
    ended_at=bindparam("now"),
    receipt=bindparam("kept"),
    seconds=bindparam("took"),
    bytes_to_driver=bindparam("bytes"),
)
_SECONDS = select(AttemptRow.planned_at, AttemptRow.number, AttemptRow.phase, AttemptRow.seconds).where(
    *matching(AttemptRow, *ITERATION, "state"), AttemptRow.seconds.is_not(None)
)
_NEWEST_DONE = (
    select(*AttemptRow.__table__.columns)
    .where(*matching(AttemptRow, *ITERATION, "phase", "state"))
    .order_by(AttemptRow.number.desc())
    .limit(1)
)


def _place(attempt: Attempt) -> dict[str, Any]:
    """Returns the parameters of a statement that tell the attempt."""
    return given(**{name: getattr(attempt, name) for name in Attempt.__slots__})


def fail_open(connection: Connection, run: str, reason: str, now: int, failure_class: str) -> int:
    """Marks every open attempt of a run as failed; returns their number."""
    change = (
        update(AttemptRow)
        .where(AttemptRow.run == run, AttemptRow.ended_at.is_(None))
        .values(state=FAILED, failure_class=failure_class, reason=reason, ended_at=now)
    )
    return int(connection.execute(change).rowcount)


class Phases:
    """Records attempts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def plan(self, fence: Fence, branch: int, iteration: int, phase: str) -> Attempt:
        """Records the intent to execute a phase; durable once it is dispatched. Raises `Fenced`."""
        with self._database.fenced(fence, synced=False) as (connection, now):
            place = given(run=fence.run, branch=branch, iteration=iteration, phase=phase)
            last = connection.execute(_LAST_NUMBER, place).scalar_one()
            attempt = Attempt(run=fence.run, branch=branch, iteration=iteration, phase=phase, number=(last or 0) + 1)
            row = {name: getattr(attempt, name) for name in Attempt.__slots__}
            row |= {"state": PLANNED, "term": fence.term, "planned_at": now}
            connection.execute(insert(AttemptRow), row)
        return attempt

    def dispatch(self, fence: Fence, attempt: Attempt, synced: bool = True) -> None:
        """Charges the attempt; the work may start as soon as this returns.

        synced: whether the charge is durable by then; not needed if the work begins with a transaction that is.

        Raises `Fenced`, `OutOfOrder`.
        """
        fence.require_run(attempt.run)
        with self._database.fenced(fence, synced) as (connection, now):
            result = connection.execute(_DISPATCH, _place(attempt) | {"now": now})
            _expect_one(result.rowcount, attempt, "dispatched", PLANNED)

    def finish(
        self, fence: Fence, attempt: Attempt, receipt: Mapping[str, Any], seconds: float, bytes_to_driver: int = 0
    ) -> None:
        """Marks the attempt as done; durable before the next attempt is dispatched, or an iteration is committed.

        receipt: the part of the phase's result that recovery needs.

        Raises `Fenced`, `OutOfOrder`.
        """
        fence.require_run(attempt.run)
        with self._database.fenced(fence, synced=False) as (connection, now):
            values = {"kept": receipt, "took": seconds, "bytes": bytes_to_driver, "now": now}
            result = connection.execute(_FINISH, _place(attempt) | values)
            _expect_one(result.rowcount, attempt, "finished", DISPATCHED)

    def fail(self, fence: Fence, attempt: Attempt, failure_class: str, reason: str) -> None:
        """Marks the attempt as failed, before or after its dispatch. Raises `Fenced`, `OutOfOrder`."""
        fence.require_run(attempt.run)
        with self._database.fenced(fence) as (connection, now):
            change = update(AttemptRow).where(*_attempt(attempt), AttemptRow.ended_at.is_(None))
            values = {"failure_class": failure_class, "reason": reason}
            result = connection.execute(change.values(state=FAILED, ended_at=now, **values))
            _expect_one(result.rowcount, attempt, "failed", "open")

    def fail_open(self, fence: Fence, reason: str, failure_class: str = "infrastructure") -> int:
        """Marks every open attempt of the run as failed; returns their number. Raises `Fenced`.

        This is for a driver that continues after the ledger was unavailable, and does not know whether its last
        writes about open attempts were recorded.
        """
        with self._database.fenced(fence) as (connection, now):
            return fail_open(connection=connection, run=fence.run, reason=reason, now=now, failure_class=failure_class)

    def history(self, run: str, phase: str, limit: int = 20) -> list[float]:
        """Returns the seconds that a phase's newest finished attempts took, over all branches, newest first."""
        query = (
            select(AttemptRow.seconds)
            .where(AttemptRow.run == run, AttemptRow.phase == phase, AttemptRow.ended_at.is_not(None))
            .where(AttemptRow.state == DONE)
            .order_by(AttemptRow.ended_at.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            return [float(row.seconds) for row in connection.execute(query) if row.seconds is not None]

    def seconds(self, run: str, branch: int, iteration: int) -> dict[str, float]:
        """Returns the duration of each finished phase of an iteration.

        If a phase has several finished attempts, the newest one counts.
        """
        place = given(run=run, branch=branch, iteration=iteration, state=DONE)
        with self._database.read() as connection:
            rows = sorted(connection.execute(_SECONDS, place).tuples())
        return {phase: seconds for _, _, phase, seconds in rows if seconds is not None}

    def charged(self, run: str, branch: int, iteration: int, phase: str) -> dict[str, int]:
        """Returns the number of failed attempts at a phase that count against its budget, by failure class.

        Counts the dispatched attempts of all drivers that failed since the run last committed an iteration or sealed a shard,
        except those that were forgiven.
        """
        with self._database.read() as connection:
            return _charged(connection, Attempt(run, branch, iteration, phase, number=0))

    def progressed_at(self, run: str) -> int:
        """Returns when the run last committed an iteration or sealed a shard, milliseconds since 1970; 0 before it did."""
        with self._database.read() as connection:
            return _progressed_at(connection, run)

    def got_on_at(self, run: str) -> int:
        """Returns when the run last committed, sealed, or completed a phase of its iteration for the first time, as above.

        A driver that dies whenever it comes to a place completes nothing there that was not completed before.
        """
        with self._database.read() as connection:
            row = connection.execute(
                select(RunTable.current_branch, RunTable.iteration).where(RunTable.id == run)
            ).one_or_none()
            if row is None:
                return 0
            first = (
                select(func.min(AttemptRow.ended_at).label("at"))
                .where(AttemptRow.run == run, AttemptRow.branch == row.current_branch)
                .where(AttemptRow.iteration >= row.iteration, AttemptRow.state == DONE)
                .group_by(AttemptRow.iteration, AttemptRow.phase)
                .subquery()
            )
            newest = connection.execute(select(func.max(first.c.at))).scalar_one()
            return max(_progressed_at(connection, run), int(newest or 0))

    def forgive(
        self, fence: Fence, branch: int, iteration: int, phase: str, reason: str, by: str = ""
    ) -> dict[str, int]:
        """Renews a phase's budget: attempts charged so far no longer count. Returns their number by failure class.

        by: who renews it; empty if nobody is known.

        Raises `Fenced`; `OutOfOrder` if nothing is charged.
        """
        with self._database.fenced(fence) as (connection, _):
            charged = _charged(connection, Attempt(fence.run, branch, iteration, phase, number=0))
            if not charged:
                raise OutOfOrder(f"run {fence.run}: no failed attempt at {phase} of iteration {iteration} was charged")
            key = _phase(fence.run, branch, iteration, phase)
            last = connection.execute(select(func.max(AttemptRow.number)).where(*key)).scalar_one()
            place = {"branch": branch, "iteration": iteration, "phase": phase}
            body = {**place, "up_to": last, "charged": charged, "reason": reason} | signature(by)
            append(connection, lock_run(connection, self._database, fence.run), FORGIVEN, body)
        return charged

    def done(self, run: str, branch: int, iteration: int, phase: str) -> AttemptRow | None:
        """Returns the newest finished attempt at a phase, with its receipt; None if no attempt has finished."""
        place = given(run=run, branch=branch, iteration=iteration, phase=phase, state=DONE)
        with self._database.read() as connection:
            row = connection.execute(_NEWEST_DONE, place).one_or_none()
        return None if row is None else AttemptRow(**row._mapping)

    def attempts(self, run: str, branch: int, iteration: int) -> list[AttemptRow]:
        """Returns all attempts at an iteration's phases, in the order in which they were planned."""
        query = select(*AttemptRow.__table__.columns).where(
            AttemptRow.run == run, AttemptRow.branch == branch, AttemptRow.iteration == iteration
        )
        with self._database.read() as connection:
            rows = [AttemptRow(**row._mapping) for row in connection.execute(query)]
        # Sorted here, because ORDER BY would make SQLite scan all attempts of the run through its index of times.
        return sorted(rows, key=lambda row: (row.planned_at, row.phase, row.number))


def _phase(run: str, branch: int, iteration: int, phase: str) -> tuple[Any, ...]:
    table = AttemptRow
    return (
        table.run == run,
        table.branch == branch,
        table.iteration == iteration,
        table.phase == phase,
    )


def _progressed_at(connection: Connection, run: str) -> int:
    """Returns when the run last committed an iteration or sealed a shard, milliseconds since 1970; 0 before it did."""
    committed = select(func.max(Iteration.committed_at)).where(Iteration.run == run).scalar_subquery()
    sealed = select(func.max(Shard.recorded_at)).where(Shard.run == run).scalar_subquery()
    found = connection.execute(select(committed, sealed)).one()
    return max((int(moment) for moment in found if moment is not None), default=0)


def _charged(connection: Connection, at: Attempt) -> dict[str, int]:
    """Returns a phase's failures by class since the run last got on, counted after the last forgiven attempt."""
    place = {"branch": at.branch, "iteration": at.iteration, "phase": at.phase}
    events = select(Event.body).where(Event.run == at.run, Event.kind == FORGIVEN)
    forgiven = [body["up_to"] for body in connection.execute(events).scalars() if place.items() <= body.items()]
    query = (
        select(AttemptRow.failure_class, func.count())
        .where(*_phase(at.run, at.branch, at.iteration, at.phase))
        .where(AttemptRow.state == FAILED, AttemptRow.dispatched_at.is_not(None))
        .where(AttemptRow.number > max(forgiven, default=0))
        .where(AttemptRow.ended_at >= _progressed_at(connection, at.run))
        .group_by(AttemptRow.failure_class)
    )
    return {str(kind): int(count) for kind, count in connection.execute(query)}


def _attempt(attempt: Attempt) -> tuple[Any, ...]:
    key = _phase(attempt.run, attempt.branch, attempt.iteration, attempt.phase)
    return (*key, AttemptRow.number == attempt.number)


def _expect_one(changed: int, attempt: Attempt, verb: str, state: str) -> None:
    if changed != 1:
        raise OutOfOrder(f"{attempt} cannot be marked as {verb}: it is not {state}")
