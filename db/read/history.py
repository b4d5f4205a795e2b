"""When everything in a run happened: the input to its time accounts. Reads only.

Times are milliseconds since 1970. A run may be long, so only the columns that contain times are read, and only those
receipts and shards that show the cost of a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from sqlalchemy import Connection, Select, and_, case, func, null, select, union

from db.core.ancestry import IterationRange, ancestry
from db.core.errors import RunNotFound
from db.core.models import AttemptRow, DriverSessionTable, Event, Lease, Shard
from db.core.rows import rows_of

LEASE_TAKEN = "lease_taken"
LEASE_RELEASED = "lease_released"


@dataclass(frozen=True, slots=True)
class DriverSessionTimes:
    """One session; its outcome is `lost` if its driver was gone when the next one started."""

    term: int
    started_at: int
    ended_at: int | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """A term of the lease.

    released_at: None if the lease was lost or is still held.
    renewed_at: the holder's last renewal, if known.
    """

    term: int
    holder: str
    taken_at: int
    released_at: int | None
    renewed_at: int | None


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """An attempt at a phase.

    receipt: receipt of an attempt at `recover`; None for other phases.
    """

    branch: int
    iteration: int
    phase: str
    number: int
    state: str
    term: int
    planned_at: int
    dispatched_at: int | None
    ended_at: int | None
    failure_class: str | None
    reason: str | None
    receipt: Mapping[str, Any] | None

    @property
    def key(self) -> tuple[int, int, str, int]:
        """The key that identifies the attempt within the run."""
        return self.branch, self.iteration, self.phase, self.number


@dataclass(frozen=True, slots=True)
class SealedTimes:
    """A sealed shard of an iteration whose `collect` failed at least once."""

    branch: int
    iteration: int
    recorded_at: int


@dataclass(frozen=True, slots=True)
class RunHistory:
    """All times of one run, on every branch; each tuple is in chronological order.

    line: the current branch's ranges, oldest first.
    since: where the requested part of the history begins; None for all of it. A session in progress at that
        time begins there too.
    """

    run: str
    line: tuple[IterationRange, ...]
    sessions: tuple[DriverSessionTimes, ...]
    leases: tuple[LeaseTimes, ...]
    attempts: tuple[AttemptTimes, ...]
    sealed: tuple[SealedTimes, ...]
    since: int | None = None


def read_struck(connection: Connection, run: str, newest: int, faults: int) -> RunHistory:
    """Returns a run's newest attempts, and only those earlier ones that show the cost of failures.

    newest: number of newest attempts to return.
    faults: maximum number of earlier attempts of each kind.

    The earlier ones are all attempts at phases that failed or were repeated, recoveries, and each driver's
    first attempt. Waiting times in the result are meaningless, since successful attempts are left out. Raises
    `RunNotFound`.
    """
    history = read_history(connection, run, newest)
    if history.since is None:
        return history
    own = AttemptRow.run == run
    key = (AttemptRow.branch, AttemptRow.iteration, AttemptRow.phase)
    failed = select(*key).where(own, AttemptRow.failure_class.is_not(None)).order_by(AttemptRow.ended_at.desc())
    repeated = select(*key).where(own, AttemptRow.number > 1).order_by(AttemptRow.planned_at.desc())
    recoveries = select(*key).where(own, AttemptRow.phase == "recover", AttemptRow.ended_at.is_not(None))
    recoveries = recoveries.order_by(AttemptRow.ended_at.desc())
    kinds = [select(query.limit(faults).subquery()) for query in (failed, repeated, recoveries)]
    struck = union(*kinds).subquery()
    at_struck = and_(own, *(column == struck.c[column.key] for column in key))
    first = select(func.min(AttemptRow.planned_at)).where(own, AttemptRow.planned_at >= DriverSessionTable.started_at)
    begun = select(first.correlate(DriverSessionTable).scalar_subquery()).where(DriverSessionTable.run == run)
    queries = (_attempts(run).join(struck, at_struck), _attempts(run).where(AttemptRow.planned_at.in_(begun)))
    earlier = {row.key: row for query in queries for row in _rows(connection, query)}
    attempts = (earlier | {row.key: row for row in history.attempts}).values()
    return RunHistory(
        run=run,
        line=history.line,
        sessions=rows_of(
            connection=connection,
            table=DriverSessionTable,
            kind=DriverSessionTimes,
            run=run,
            order=DriverSessionTable.term,
        ),
        leases=read_leases(connection, run),
        attempts=tuple(sorted(attempts, key=lambda row: row.planned_at)),
        sealed=_sealed(connection, run, None),
    )


def read_history(connection: Connection, run: str, newest: int | None = None) -> RunHistory:
    """Returns the history of a run, by its id.

    newest: only this many of the newest attempts; None for all.

    Raises `RunNotFound`.
    """
    line = tuple(ancestry(connection, run))
    since = None if newest is None else _begin_of(connection, run, newest)
    attempts = _attempts(run)
    if since is not None:
        attempts = attempts.where(AttemptRow.planned_at >= since)
    leases = read_leases(connection, run, since)
    terms = {lease.term for lease in leases}
    sessions = rows_of(
        connection=connection, table=DriverSessionTable, kind=DriverSessionTimes, run=run, order=DriverSessionTable.term
    )
    return RunHistory(
        run=run,
        line=line,
        sessions=tuple(_clipped(row, since) for row in sessions if row.term in terms),
        leases=leases,
        attempts=_rows(connection, attempts),
        sealed=_sealed(connection, run, since),
        since=since,
    )


def _attempts(run: str) -> Select[Any]:
    receipt = case((AttemptRow.phase == "recover", AttemptRow.receipt), else_=null())
    columns = [AttemptRow.__table__.columns[name] for name in get_type_hints(AttemptTimes) if name != "receipt"]
    return select(*columns, receipt.label("receipt")).where(AttemptRow.run == run)


def _rows(connection: Connection, query: Select[Any]) -> tuple[AttemptTimes, ...]:
    return tuple(AttemptTimes(**row._mapping) for row in connection.execute(query.order_by(AttemptRow.planned_at)))


def _begin_of(connection: Connection, run: str, newest: int) -> int | None:
    """Returns when the oldest of the newest attempts was planned; None if there are no older ones."""
    query = select(AttemptRow.planned_at).where(AttemptRow.run == run).order_by(AttemptRow.planned_at.desc())
    rows = connection.execute(query.offset(newest - 1).limit(2)).scalars().all()
    return int(rows[0]) if len(rows) == 2 else None


def _clipped(session: DriverSessionTimes, since: int | None) -> DriverSessionTimes:
    return session if since is None else replace(session, started_at=max(session.started_at, since))


def read_leases(connection: Connection, run: str, since: int | None = None) -> tuple[LeaseTimes, ...]:
    """Returns the terms of a run's lease from the audit chain; the newest term's renewal comes from the lease itself.

    since: only terms that ended after this time.

    Raises `RunNotFound`.
    """
    events = connection.execute(
        select(Event.kind, Event.at, Event.body)
        .where(Event.run == run, Event.kind.in_((LEASE_TAKEN, LEASE_RELEASED)))
        .order_by(Event.seq)
    ).all()
    taken = [event for event in events if event.kind == LEASE_TAKEN]
    released = {event.body["term"]: event.at for event in events if event.kind == LEASE_RELEASED}
    # A `lease_taken` event contains the last renewal of the previous holder.
    renewed = {event.body["term"] - 1: event.body.get("renewed_at") for event in taken}
    lease = connection.execute(select(*Lease.__table__.columns).where(Lease.run == run)).one_or_none()
    if lease is None:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    if lease.holder is not None:
        renewed[lease.term] = lease.expires_at - lease.ttl_ms
    terms = [(event.body["term"], event.body["holder"], event.at) for event in taken]
    rows = [
        LeaseTimes(term=term, holder=by, taken_at=at, released_at=released.get(term), renewed_at=renewed.get(term))
        for term, by, at in terms
    ]
    if since is None:
        return tuple(rows)
    earlier = [row for row in rows if row.taken_at <= since]
    # The term that was in progress at `since`, unless its lease was released before that time.
    at_work = [
        replace(row, taken_at=since) for row in earlier[-1:] if row.released_at is None or row.released_at > since
    ]
    return (*at_work, *(row for row in rows if row.taken_at > since))


def _sealed(connection: Connection, run: str, since: int | None) -> tuple[SealedTimes, ...]:
    failed = select(AttemptRow.branch, AttemptRow.iteration).where(
        AttemptRow.run == run,
        AttemptRow.failure_class.is_not(None),
        AttemptRow.phase.in_(("collect", "collect_ahead")),
        AttemptRow.state == "FAILED",
    )
    if since is not None:
        failed = failed.where(AttemptRow.planned_at >= since)
    struck = failed.distinct().subquery()
    columns = [Shard.__table__.columns[name] for name in get_type_hints(SealedTimes)]
    rows = connection.execute(
        select(*columns)
        .join(struck, (Shard.branch == struck.c.branch) & (Shard.iteration == struck.c.iteration))
        .where(Shard.run == run)
        .order_by(Shard.recorded_at)
    )
    return tuple(SealedTimes(**row._mapping) for row in rows)
