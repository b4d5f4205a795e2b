"""The commit of an iteration: a single transaction that records all of its results, or none of them.

Consumes the results of the phases; produces the iteration's row, control state, metric points, outbox rows,
audit link and alarms, and extends the lease. Iterations have no gaps: k follows k-1 along the branch's line; 0
is the start (initial weights, SFT).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, insert, select, update

from db.core.ancestry import IterationRange, ancestry, range_of
from db.core.engine import Database, Fence, canonical_json
from db.core.errors import AlreadyCommitted, OutOfOrder
from db.core.made_once import ITERATION, given, matching
from db.core.models import ControlStateTable, Iteration, Lease, RunTable
from db.write.alarms import ALARM
from db.write.events import append, lock_run
from db.write.metrics import Metric, write_points
from db.write.outbox import METRICS, MLFLOW, OutboxEntry, enqueue, metrics_id


@dataclass(frozen=True, slots=True)
class IterationCommit:
    """Everything that a commit records.

    fingerprint: what a replay of its update must reproduce.
    event: contents of the audit link in addition to the digests.
    alarms: alarms that guards have raised; each becomes a link of the audit chain after the commit's link.
    trackers: the trackers that receive the metrics.
    """

    branch: int
    iteration: int
    control_state: Mapping[str, Any]
    logged_at_ms: int
    experience_digest: str | None = None
    weights_digest: str | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Metric] = ()
    outbox: Sequence[OutboxEntry] = ()
    event: Mapping[str, Any] = field(default_factory=dict)
    alarms: Sequence[Mapping[str, Any]] = ()
    trackers: Sequence[str] = (MLFLOW,)


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A committed iteration with its control state.

    committed_at: milliseconds since 1970.
    """

    run: str
    branch: int
    iteration: int
    term: int
    experience_digest: str | None
    weights_digest: str | None
    fingerprint: Mapping[str, Any]
    committed_at: int
    state: Mapping[str, Any]


class Maker(NamedTuple):
    """The run and branch that an iteration belongs to.

    committed: False if the iteration is in progress or has not started.
    """

    run: str
    branch: int
    committed: bool


COMMITTED = select(*Iteration.__table__.columns, ControlStateTable.state).join(
    ControlStateTable,
    (ControlStateTable.run == Iteration.run)
    & (ControlStateTable.branch == Iteration.branch)
    & (ControlStateTable.iteration == Iteration.iteration),
)
"""The columns of a `CommitRow`."""
# Statements of every commit, made once.
_COMMITTED_AT = COMMITTED.where(*matching(Iteration, *ITERATION))
_SET_NEWEST = (
    update(RunTable)
    .where(*matching(RunTable, "id"))
    .values(iteration=bindparam("newest"), committed_at=bindparam("now"))
)
_RENEW = (
    update(Lease).where(*matching(Lease, "run")).values(expires_at=bindparam("now", type_=BigInteger) + Lease.ttl_ms)
)


class Commits:
    """Commits iterations and reads committed ones."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def commit(self, fence: Fence, commit: IterationCommit) -> None:
        """Commits an iteration. Raises `Fenced`, `AlreadyCommitted` or `OutOfOrder`, and then writes nothing."""
        with self._database.fenced(fence) as (connection, now):
            run = lock_run(connection, self._database, fence.run)
            _check_order(run, commit)
            _insert_iteration(connection, fence, commit, now)
            write_points(
                connection=connection,
                run=fence.run,
                branch=commit.branch,
                step=commit.iteration,
                metrics=commit.metrics,
            )
            enqueue(connection, fence.run, _outbox(fence.run, commit))
            connection.execute(_RENEW, given(run=fence.run) | {"now": now})
            append(connection, run, "commit", _event(fence, commit))
            for body in commit.alarms:
                append(connection, lock_run(connection, self._database, fence.run), ALARM, body)

    def latest(self, run: str) -> CommitRow | None:
        """Returns the newest commit along the current branch's line; None before the first. Raises `RunNotFound`."""
        with self._database.read() as connection:
            ranges = ancestry(connection, run)
            iteration = connection.execute(select(RunTable.iteration).where(RunTable.id == run)).scalar_one()
            return None if iteration < 0 else _find(connection, ranges, iteration)

    def at(self, run: str, iteration: int, branch: int | None = None) -> CommitRow | None:
        """Returns the commit of an iteration along a branch's line; None if there is none.

        branch: by default, the current one.

        Raises `RunNotFound`.
        """
        with self._database.read() as connection:
            return _find(connection, ancestry(connection, run, branch), iteration)

    def maker(self, run: str, iteration: int) -> Maker:
        """Returns the run and branch of an iteration of the current line, committed or not. Raises `RunNotFound`."""
        with self._database.read() as connection:
            line = ancestry(connection, run)
            commit = _find(connection, line, iteration)
        return Maker(run, line[-1].branch, False) if commit is None else Maker(commit.run, commit.branch, True)

    def experience_digests(self, run: str) -> list[tuple[int, str]]:
        """Returns (iteration, digest) along the current branch's line, for the iterations that have experience."""
        digests: list[tuple[int, str]] = []
        with self._database.read() as connection:
            for span in ancestry(connection, run):
                rows = connection.execute(
                    select(Iteration.iteration, Iteration.experience_digest)
                    .where(Iteration.run == span.run, Iteration.branch == span.branch)
                    .where(Iteration.iteration.between(span.first, span.last))
                    .where(Iteration.experience_digest.is_not(None))
                    .order_by(Iteration.iteration)
                )
                digests.extend((row.iteration, row.experience_digest) for row in rows)
        return digests


def _check_order(run: Any, commit: IterationCommit) -> None:
    place = f"run {run.id}, branch {commit.branch}, iteration {commit.iteration}"
    if commit.branch != run.current_branch:
        raise OutOfOrder(f"{place}: the current branch is {run.current_branch}")
    if commit.iteration <= run.iteration:
        raise AlreadyCommitted(f"{place} is already committed; the newest commit is iteration {run.iteration}")
    if commit.iteration != run.iteration + 1:
        raise OutOfOrder(f"{place}: the next iteration to commit is {run.iteration + 1}")


def _insert_iteration(connection: Connection, fence: Fence, commit: IterationCommit, now: int) -> None:
    key = {"run": fence.run, "branch": commit.branch, "iteration": commit.iteration}
    row = key | {
        "term": fence.term,
        "experience_digest": commit.experience_digest,
        "weights_digest": commit.weights_digest,
        "fingerprint": commit.fingerprint,
        "committed_at": now,
    }
    connection.execute(insert(Iteration), row)
    connection.execute(insert(ControlStateTable), key | {"state": commit.control_state})
    connection.execute(_SET_NEWEST, given(id=fence.run) | {"newest": commit.iteration, "now": now})


def _outbox(run: str, commit: IterationCommit) -> list[OutboxEntry]:
    entries = list(commit.outbox)
    if commit.metrics:
        place = {"branch": commit.branch, "iteration": commit.iteration}
        name = metrics_id(run, commit.branch, commit.iteration)
        entry = OutboxEntry(name, METRICS, place, commit.logged_at_ms)
        entries += [entry.to(tracker) for tracker in commit.trackers]
    return entries


def _event(fence: Fence, commit: IterationCommit) -> dict[str, Any]:
    return {
        **commit.event,
        "branch": commit.branch,
        "iteration": commit.iteration,
        "term": fence.term,
        "experience_digest": commit.experience_digest,
        "weights_digest": commit.weights_digest,
        "state_digest": state_digest(commit.control_state, commit.fingerprint),
    }


def state_digest(control_state: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> str:
    """Returns the digest of control state and fingerprint in a commit's link: sha256 of their canonical JSON."""
    return hashlib.sha256(canonical_json([control_state, fingerprint]).encode()).hexdigest()


def _find(connection: Connection, ranges: list[IterationRange], iteration: int) -> CommitRow | None:
    span = range_of(ranges, iteration)
    if span is None:
        return None
    place = given(run=span.run, branch=span.branch, iteration=iteration)
    row = connection.execute(_COMMITTED_AT, place).one_or_none()
    return None if row is None else CommitRow(**row._mapping)
