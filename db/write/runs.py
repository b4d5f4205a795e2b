"""Runs, their spec revisions and their branches.

An operator's actions need no lease and are recorded as events; everything else needs a fence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from db.core.ancestry import IterationRange, ancestry, range_of
from db.core.engine import Database, Fence
from db.core.errors import LedgerError, OutOfOrder, RunNotFound
from db.core.lease_rows import create_lease
from db.core.made_once import given, matching
from db.core.models import Branch, Choice, DeletedRun, Iteration, RunTable
from db.core.models import Revision as Revision
from db.core.subjects import of_run
from db.write.events import GENESIS, append, lock_run, signature
from db.write.outbox import OutboxEntry, enqueue

STATES = ("created", "running", "waiting", "stopped", "paused", "failed", "completed")
DRIVEN_STATES = ("running", "waiting")
"""The states that end with their driver: a run that is in one and has no driver has lost it."""
RUN = "run"
STOP = "stop"
"""Values of a run's desired state."""
NAME_TRIES = 20

Tell = Callable[[int], Sequence[OutboxEntry]]
"""Takes the number of a new branch or revision, which is known only after its creation, and returns its outbox rows."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run. Times are milliseconds since 1970.

    iteration: newest commit along the current branch; -1 before the first.
    """

    id: str
    spec_name: str
    state: str
    state_reason: str
    desired_state: str
    target_iterations: int
    current_branch: int
    iteration: int
    committed_at: int | None
    mlflow_run_id: str | None
    created_at: int


@dataclass(frozen=True, slots=True)
class Parent:
    """The start of a fork: the iteration of another run's branch after which the fork begins."""

    run: str
    branch: int
    iteration: int


RUN_COLUMNS = [RunTable.__table__.columns[name] for name in RunRow.__slots__]
_OF_ID = select(*RUN_COLUMNS).where(*matching(RunTable, "id"))
"""Made once: each iteration asks whether the run is to stop."""


class Runs:
    """Creates, finds and controls runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        spec_name: str,
        spec: Mapping[str, Any],
        digest: str,
        target_iterations: int,
        reason: str = "created",
        parent: Parent | None = None,
        by: str = "",
    ) -> RunRow:
        """Creates a run with revision 1 and branch 0; its id consists of the spec's name and the next free number.

        by: who creates it; empty if nobody is known.
        """
        for _ in range(NAME_TRIES):
            try:
                with self._database.write() as connection:
                    run = self._insert(
                        connection=connection,
                        spec_name=spec_name,
                        target_iterations=target_iterations,
                        parent=parent,
                        reason=reason,
                    )
                    if parent is not None:
                        self._record_fork(connection, run, parent, by)
                    _insert_revision(
                        connection=connection,
                        database=self._database,
                        run=run,
                        number=1,
                        digest=digest,
                        spec=spec,
                        reason=reason,
                        by=by,
                    )
                return self.find(run)
            except IntegrityError:
                continue  # another process took the number, which can happen only on PostgreSQL: SQLite's writers queue
        raise LedgerError(f"found no free name for a run of spec {spec_name!r} in {NAME_TRIES} attempts")

    def find(self, name: str) -> RunRow:
        """Returns the run with this id, or the only one whose id starts with it.

        Raises `RunNotFound`, which lists the candidates if there are several, and the nearest ids if there are none,
        or says that the run was deleted.
        """
        with self._database.read() as connection:
            exact = connection.execute(_OF_ID, given(id=name)).one_or_none()
            if exact is not None:
                return RunRow(**exact._mapping)
            # Before the prefixes: the id of a deleted run may be the beginning of another one's.
            deleted_by = connection.execute(select(DeletedRun.by).where(DeletedRun.run == name)).scalar_one_or_none()
            if deleted_by is not None:
                raise RunNotFound(f"run {name!r} was deleted by {deleted_by}; see `yatt runs --deleted`")
            rows = connection.execute(
                select(*RUN_COLUMNS)
                .where(func.substr(RunTable.id, 1, len(name)) == name)
                .order_by(RunTable.created_at.desc(), RunTable.number.desc())
            ).all()
        if len(rows) == 1 and name:
            return RunRow(**rows[0]._mapping)
        if rows:
            raise RunNotFound(f"{name!r} is ambiguous; it matches {', '.join(row.id for row in rows[:5])}")
        near = get_close_matches(name, [row.id for row in self.list()], n=3)
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise RunNotFound(f"there is no run {name!r} in this ledger{meant}")

    def list(self, limit: int = 1000) -> tuple[RunRow, ...]:
        """Returns the newest runs, newest first."""
        newest = (
            select(*RUN_COLUMNS).order_by(RunTable.created_at.desc(), RunTable.number.desc(), RunTable.id).limit(limit)
        )
        with self._database.read() as connection:
            return tuple(RunRow(**row._mapping) for row in connection.execute(newest))

    def named(self, spec_name: str) -> tuple[RunRow, ...]:
        """Returns all runs of specs with this name, oldest first."""
        query = select(*RUN_COLUMNS).where(RunTable.spec_name == spec_name).order_by(RunTable.number)
        with self._database.read() as connection:
            return tuple(RunRow(**row._mapping) for row in connection.execute(query))

    def revision(self, run: str, number: int | None = None) -> Revision:
        """Returns a revision of the run's spec, by default the newest. Raises `RunNotFound`."""
        query = select(*Revision.__table__.columns).where(Revision.run == run)
        if number is not None:
            query = query.where(Revision.revision == number)
        with self._database.read() as connection:
            row = connection.execute(query.order_by(Revision.revision.desc()).limit(1)).one_or_none()
        if row is None:
            raise RunNotFound(f"there is no run {run!r} in this ledger, or no revision {number} of it")
        return Revision(**row._mapping)

    def add_revision(
        self,
        fence: Fence,
        spec: Mapping[str, Any],
        digest: str,
        reason: str,
        target_iterations: int,
        tell: Tell = lambda number: (),
        by: str = "",
    ) -> int:
        """Adds the next revision of the spec, which takes effect at once; returns its number. Raises `Fenced`.

        tell: given the revision's number, returns the tracker's outbox rows.
        """
        with self._database.fenced(fence) as (connection, _):
            newest = select(func.max(Revision.revision)).where(Revision.run == fence.run)
            number = connection.execute(newest).scalar_one() + 1
            _insert_revision(
                connection=connection,
                database=self._database,
                run=fence.run,
                number=number,
                digest=digest,
                spec=spec,
                reason=reason,
                by=by,
            )
            connection.execute(
                update(RunTable).where(RunTable.id == fence.run).values(target_iterations=target_iterations)
            )
            enqueue(connection, fence.run, tell(number))
        return int(number)

    def ask_to_stop(self, run: str, reason: str = "", within_seconds: float | None = None, by: str = "") -> None:
        """Asks the run's driver to stop; the driver checks for this request at safe points. Raises `RunNotFound`.

        within_seconds: a driver that has not stopped by then ends at once.
        by: who asks; empty if it is no person.

        If the run was already asked to stop, a new limit replaces the old one; without a limit, nothing changes.
        """
        with self._database.write() as connection:
            row = lock_run(connection, self._database, run)
            if row.desired_state == STOP and within_seconds is None:
                return
            desire(connection=connection, row=row, state=STOP, reason=reason, within_seconds=within_seconds, by=by)

    def desired_state(self, run: str) -> str:
        """Returns the state that operators have requested: `run` or `stop`. Raises `RunNotFound`."""
        return self.find(run).desired_state

    def stop_deadline(self, run: str) -> float | None:
        """Returns the seconds left for a run that was asked to stop, negative after its deadline; None if it has none.

        Raises `RunNotFound`.
        """
        query = select(RunTable.stop_at, self._database.now().label("now")).where(RunTable.id == run)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise RunNotFound(f"there is no run {run!r} in this ledger")
        return None if row.stop_at is None else (row.stop_at - row.now) / 1000

    def set_state(self, fence: Fence, state: str, reason: str = "", told: Sequence[OutboxEntry] = ()) -> None:
        """Sets the run's state (one of `STATES`) and its reason, with outbox rows that report it. Raises `Fenced`."""
        if state not in STATES:
            raise LedgerError(f"run state {state!r}: expected one of {', '.join(STATES)}")
        with self._database.fenced(fence) as (connection, _):
            connection.execute(
                update(RunTable).where(RunTable.id == fence.run).values(state=state, state_reason=reason)
            )
            row = lock_run(connection, self._database, fence.run)
            append(connection, row, "state", {"state": state, "reason": reason, "term": fence.term})
            enqueue(connection, fence.run, told)

    def set_mlflow_run(self, fence: Fence, mlflow_run_id: str) -> None:
        """Stores the tracker's id of the run. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, _):
            connection.execute(update(RunTable).where(RunTable.id == fence.run).values(mlflow_run_id=mlflow_run_id))

    def start_branch(
        self,
        fence: Fence,
        at_iteration: int,
        reason: str,
        tell: Tell = lambda number: (),
        choices: Mapping[str, Mapping[str, Any]] | None = None,
        by: str = "",
    ) -> int:
        """Opens a branch after a committed iteration of the current line (a rollback) and makes it the current one.

        tell: given the branch's number, returns the tracker's outbox rows.
        choices: choices, by name, that the branch's first iteration must obey.
        by: who rolls back; empty if a guard does.

        Returns the branch's number. Raises `Fenced`; `OutOfOrder` if the iteration is not committed.
        """
        with self._database.fenced(fence) as (connection, now):
            run = lock_run(connection, self._database, fence.run)
            line = ancestry(connection, fence.run)
            span = range_of(line, at_iteration)
            if span is None or at_iteration > run.iteration:
                raise OutOfOrder(f"run {fence.run}: iteration {at_iteration} is not committed (last: {run.iteration})")
            newest = select(func.max(Branch.number)).where(Branch.run == fence.run)
            # Never the number of an inherited branch, since a fork stores its inherited copies under these numbers.
            number = 1 + max(int(connection.execute(newest).scalar_one()), *(part.branch for part in line))
            parent = Parent(span.run, span.branch, at_iteration)
            _insert_branch(connection=connection, run=fence.run, number=number, parent=parent, reason=reason, now=now)
            connection.execute(
                update(RunTable).where(RunTable.id == fence.run).values(current_branch=number, iteration=at_iteration)
            )
            for name, chosen in (choices or {}).items():
                row = {"run": fence.run, "branch": number, "iteration": at_iteration + 1, "name": name, "body": chosen}
                connection.execute(insert(Choice), row | {"term": fence.term, "recorded_at": now})
            body = {"branch": number, "parent_branch": span.branch, "at": at_iteration, "reason": reason}
            append(connection, run, "branch", body | {"choices": dict(choices or {})} | signature(by))
            enqueue(connection, fence.run, tell(number))
        return number

    def line(self, run: str, branch: int | None = None) -> tuple[IterationRange, ...]:
        """Returns the ranges of a branch's line, oldest first, ending at its newest commit.

        branch: by default, the current one.

        Raises `RunNotFound`, also for a branch that does not exist.
        """
        with self._database.read() as connection:
            ranges = ancestry(connection, run, branch)
            own = ranges[-1]
            committed = select(func.max(Iteration.iteration)).where(
                Iteration.run == run, Iteration.branch == own.branch
            )
            last = connection.execute(committed).scalar_one()
        return (*ranges[:-1], replace(own, last=own.first - 1 if last is None else last))

    def _record_fork(self, connection: Connection, run: str, parent: Parent, by: str) -> None:
        """Records the fork as its first link, which binds it to the current head of its parent's chain."""
        head = connection.execute(select(RunTable.event_hash).where(RunTable.id == parent.run)).scalar_one()
        body = {**asdict(parent), "audit_head": head} | signature(by)
        append(connection, lock_run(connection, self._database, run), "fork", body)

    def _insert(
        self, connection: Connection, spec_name: str, target_iterations: int, parent: Parent | None, reason: str
    ) -> str:
        last, deleted = (
            select(func.max(table.number)).where(table.spec_name == spec_name).scalar_subquery()
            for table in (RunTable, DeletedRun)
        )
        newest, newest_deleted, now = connection.execute(select(last, deleted, self._database.now())).one()
        number = max(newest or 0, newest_deleted or 0) + 1
        run = f"{spec_name}-{number}"
        row = {
            "id": run,
            "spec_name": spec_name,
            "number": number,
            "state": "created",
            "state_reason": "",
            "desired_state": RUN,
            "target_iterations": target_iterations,
            "current_branch": 0,
            "iteration": -1 if parent is None else parent.iteration,
            "created_at": now,
            "event_seq": 0,
            "event_hash": GENESIS,
        }
        connection.execute(insert(RunTable), row)
        create_lease(connection, of_run(run), now, run)
        if parent is not None and _missing(connection, parent):
            raise OutOfOrder(f"run {parent.run}, branch {parent.branch}: iteration {parent.iteration} is not committed")
        _insert_branch(connection=connection, run=run, number=0, parent=parent, reason=reason, now=now)
        return run


def forget_stop(connection: Connection, database: Database, run: str) -> None:
    """Cancels a stop that was requested of the run's driver, in the transaction that gives the run a new driver."""
    row = lock_run(connection, database, run)
    if row.desired_state != RUN:
        desire(connection=connection, row=row, state=RUN, reason="another driver", within_seconds=None)


def desire(
    connection: Connection, row: Any, state: str, reason: str, within_seconds: float | None, by: str = ""
) -> None:
    """Sets a run's desired state, in a transaction of the caller; `row` is from `lock_run`."""
    stop_at = None if within_seconds is None else row.now + round(within_seconds * 1000)
    connection.execute(update(RunTable).where(RunTable.id == row.id).values(desired_state=state, stop_at=stop_at))
    body = {"desired_state": state, "reason": reason, "within_seconds": within_seconds}
    append(connection, row, "desired_state", body | signature(by))


def _missing(connection: Connection, parent: Parent) -> bool:
    key = (Iteration.run == parent.run, Iteration.branch == parent.branch, Iteration.iteration == parent.iteration)
    return connection.execute(select(Iteration.iteration).where(*key)).one_or_none() is None


def _insert_branch(connection: Connection, run: str, number: int, parent: Parent | None, reason: str, now: int) -> None:
    row: dict[str, Any] = {"run": run, "number": number, "reason": reason, "created_at": now}
    if parent is not None:
        row |= {"parent_run": parent.run, "parent_branch": parent.branch, "parent_iteration": parent.iteration}
    connection.execute(insert(Branch), row)


def _insert_revision(
    connection: Connection,
    database: Database,
    run: str,
    number: int,
    digest: str,
    spec: Mapping[str, Any],
    reason: str,
    by: str,
) -> None:
    head = lock_run(connection, database, run)
    row = Revision(run=run, revision=number, digest=digest, spec=spec, reason=reason, created_at=int(head.now))
    connection.execute(insert(Revision), asdict(row))
    body = {"revision": number, "digest": digest, "reason": reason} | signature(by)
    append(connection, head, "spec_revision", body)
