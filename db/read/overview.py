"""What people look at: a line per run for `yatt runs`, and one run in full for `yatt show`. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select
from sqlalchemy.orm import InstrumentedAttribute

from db.core.engine import Database
from db.core.errors import RunNotFound
from db.core.models import AttemptRow, Branch, CheckpointRow, DriverSessionTable, Lease, Outbox, RunTable, Shard
from db.core.rows import rows_of
from db.read.history import LeaseTimes, RunHistory, read_history, read_leases, read_struck
from db.write.outbox import NOTIFICATION, REFUSED
from db.write.runs import RUN_COLUMNS, RunRow

NEWEST_FIRST = (RunTable.created_at.desc(), RunTable.number.desc(), RunTable.id)


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in brief. Ages and times are in seconds.

    holder: None if the lease is free.
    lease_expires_in: negative once the lease has expired.
    """

    run: RunRow
    term: int
    holder: str | None
    lease_expires_in: float
    last_commit_age: float | None


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """Totals of a phase over the whole run.

    failures: dispatched attempts that failed, by class.
    seconds: total duration of finished attempts.
    """

    phase: str
    attempts: int
    done: int
    failures: Mapping[str, int]
    seconds: float
    bytes_to_driver: int


@dataclass(frozen=True, slots=True)
class DriverSessionRow:
    """One session. Times are milliseconds since 1970."""

    term: int
    flow_run_id: str
    flow_run_name: str
    started_at: int
    ended_at: int | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class BranchRow:
    """A line of iterations and where it starts."""

    number: int
    parent_run: str | None
    parent_branch: int | None
    parent_iteration: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class ForkRow:
    """A run that began after an iteration of another run's branch."""

    run: str
    parent_branch: int
    parent_iteration: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunOverview:
    """Everything that `yatt show` displays about a run.

    samples, tokens: totals of all recorded shards, on all branches.
    outbox_pending: undelivered rows for the tracker.
    outbox_refused: rows that a tracker has refused for good.
    notifications_pending: undelivered rows for people.
    """

    line: RunLine
    phases: tuple[PhaseSummary, ...]
    sessions: tuple[DriverSessionRow, ...]
    branches: tuple[BranchRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    samples: int
    tokens: int
    outbox_pending: int
    outbox_refused: int
    notifications_pending: int


class Overviews:
    """The queries of `yatt runs` and `yatt show`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def runs(self, limit: int = 1000) -> tuple[RunLine, ...]:
        """Returns the newest runs, newest first."""
        with self._database.read() as connection:
            return _lines(connection, self._database, None, limit)

    def line(self, run: str) -> RunLine:
        """Returns one run in brief. Raises `RunNotFound`."""
        with self._database.read() as connection:
            return self._line(connection, run)

    def show(self, run: str) -> RunOverview:
        """Returns one run in full. Raises `RunNotFound`."""
        with self._database.read() as connection:
            line = self._line(connection, run)
            sums = select(func.coalesce(func.sum(Shard.samples), 0), func.coalesce(func.sum(Shard.tokens), 0))
            samples, tokens = connection.execute(sums.where(Shard.run == run)).one()
            waiting = select(
                func.count().filter(Outbox.kind != NOTIFICATION), func.count().filter(Outbox.kind == NOTIFICATION)
            ).where(Outbox.run == run, Outbox.delivered_at.is_(None))
            for_tracker, for_people = connection.execute(waiting).one()
            refused = select(func.count()).where(Outbox.run == run, Outbox.external_id.startswith(REFUSED))
            return RunOverview(
                line=line,
                phases=_phases(connection, run),
                sessions=rows_of(
                    connection=connection,
                    table=DriverSessionTable,
                    kind=DriverSessionRow,
                    run=run,
                    order=DriverSessionTable.term,
                ),
                branches=rows_of(connection=connection, table=Branch, kind=BranchRow, run=run, order=Branch.number),
                checkpoints=rows_of(
                    connection=connection,
                    table=CheckpointRow,
                    kind=CheckpointRow,
                    run=run,
                    order=CheckpointRow.recorded_at,
                ),
                samples=int(samples),
                tokens=int(tokens),
                outbox_pending=int(for_tracker),
                outbox_refused=connection.execute(refused).scalar_one(),
                notifications_pending=int(for_people),
            )

    def _line(self, connection: Connection, run: str) -> RunLine:
        lines = _lines(connection, self._database, run, 1)
        if not lines:
            raise RunNotFound(f"there is no run {run!r} in this ledger")
        return lines[0]

    def forks(self, run: str) -> tuple[ForkRow, ...]:
        """Returns the runs that were forked from this one, oldest first."""
        columns = (Branch.run, Branch.parent_branch, Branch.parent_iteration, Branch.reason)
        query = select(*columns).where(Branch.parent_run == run, Branch.run != run, Branch.number == 0)
        with self._database.read() as connection:
            return tuple(ForkRow(**row._mapping) for row in connection.execute(query.order_by(Branch.created_at)))

    def sessions(self, run: str, newest: int | None = None) -> tuple[DriverSessionRow, ...]:
        """Returns a run's sessions in order; empty for an unknown run.

        newest: only this many of the newest sessions.
        """
        columns = [DriverSessionTable.__table__.columns[name] for name in DriverSessionRow.__slots__]
        query = (
            select(*columns).where(DriverSessionTable.run == run).order_by(DriverSessionTable.term.desc()).limit(newest)
        )
        with self._database.read() as connection:
            return tuple(DriverSessionRow(**row._mapping) for row in reversed(connection.execute(query).all()))

    def branches(self, run: str) -> tuple[BranchRow, ...]:
        """Returns the run's branches in order; empty for an unknown run."""
        with self._database.read() as connection:
            return rows_of(connection=connection, table=Branch, kind=BranchRow, run=run, order=Branch.number)

    def history(self, run: str, newest: int | None = None) -> RunHistory:
        """Returns the times of everything that happened in a run. Raises `RunNotFound`.

        newest: only this many of the newest attempts.
        """
        with self._database.read() as connection:
            return read_history(connection, run, newest)

    def leases(self, run: str) -> tuple[LeaseTimes, ...]:
        """Returns the terms of the run's lease, whether held by drivers or by commands. Raises `RunNotFound`."""
        with self._database.read() as connection:
            return read_leases(connection, run)

    def struck(self, run: str, newest: int, faults: int) -> RunHistory:
        """Returns the times that show the cost of failures; see `read_struck`. Raises `RunNotFound`."""
        with self._database.read() as connection:
            return read_struck(connection, run, newest, faults)


def _lines(connection: Connection, database: Database, run: str | None, limit: int) -> tuple[RunLine, ...]:
    query = select_lines(database.now()).order_by(*NEWEST_FIRST).limit(limit)
    if run is not None:
        query = query.where(RunTable.id == run)
    return tuple(line_of(row) for row in connection.execute(query))


def select_lines(now: ColumnElement[int], *more: InstrumentedAttribute[Any]) -> Select[Any]:
    """Returns a query for the columns that `line_of` needs, and any further ones.

    now: the ledger's clock.
    """
    columns = (*RUN_COLUMNS, Lease.term, Lease.holder, Lease.expires_at, now.label("now"), *more)
    return select(*columns).join(Lease, Lease.run == RunTable.id)


def line_of(row: Any) -> RunLine:
    """Returns a run in brief, from a row of `select_lines`."""
    own = RunRow(**{name: getattr(row, name) for name in RunRow.__slots__})
    committed = None if row.committed_at is None else (row.now - row.committed_at) / 1000
    return RunLine(
        run=own,
        term=row.term,
        holder=row.holder,
        lease_expires_in=(row.expires_at - row.now) / 1000,
        last_commit_age=committed,
    )


def _phases(connection: Connection, run: str) -> tuple[PhaseSummary, ...]:
    rows = connection.execute(
        select(
            AttemptRow.phase,
            AttemptRow.state,
            AttemptRow.failure_class,
            func.count().label("attempts"),
            func.count(AttemptRow.dispatched_at).label("charged"),
            func.coalesce(func.sum(AttemptRow.seconds), 0.0).label("seconds"),
            func.coalesce(func.sum(AttemptRow.bytes_to_driver), 0).label("bytes"),
            func.min(AttemptRow.planned_at).label("first"),
        )
        .where(AttemptRow.run == run)
        .group_by(AttemptRow.phase, AttemptRow.state, AttemptRow.failure_class)
        .order_by(func.min(AttemptRow.planned_at))
    ).all()
    summaries = []
    for phase in dict.fromkeys(row.phase for row in rows):
        own = [row for row in rows if row.phase == phase]
        done = [row for row in own if row.state == "DONE"]
        failures = {row.failure_class: row.charged for row in own if row.failure_class is not None and row.charged}
        summaries.append(
            PhaseSummary(
                phase=phase,
                attempts=sum(row.attempts for row in own),
                done=sum(row.attempts for row in done),
                failures=failures,
                seconds=float(sum(row.seconds for row in done)),
                bytes_to_driver=int(sum(row.bytes for row in done)),
            )
        )
    return tuple(summaries)
