"""Deletes runs, and keeps a record of each: who deleted it, when, why, and its audit chain.

A run that has begun is deleted only if that is said. Consumes the fence of a run that nobody drives. One transaction removes
every row of the run and adds the record, so the run exists as a whole or not at all. What lies outside the ledger is removed
afterwards; the record says what that is until everything is gone. A deleted run's number is never given to another run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from db.core.engine import Database, Fence
from db.core.errors import DeletionRefused
from db.core.models import (
    AliasMoveTable,
    Base,
    Branch,
    CheckpointRow,
    DeletedRun,
    Iteration,
    Lease,
    MetricPoint,
    MetricSeries,
    Outbox,
    Revision,
    RunTable,
)
from db.core.models import Event as Link
from db.core.subjects import SOUP, SUITE, SWEEP, subject_of
from db.write.events import EventRow, append, lock_run
from db.write.outbox import CREATION, MLFLOW

DELETED = "deleted"
"""The kind of the last link of a deleted run's audit chain."""
COPIED = 0
"""Term of a fork's copies of its parent's checkpoints; drivers' terms begin at 1."""


@dataclass(frozen=True, slots=True)
class DeletedRow:
    """A deleted run. Times are milliseconds since 1970.

    spec: the newest revision.
    outside: what the run may have left outside the ledger and its folder.
    cleaned_at: when everything outside the ledger was removed; None while something may be left.
    """

    run: str
    by: str
    why: str
    created_at: int
    deleted_at: int
    spec: Mapping[str, Any]
    links: Sequence[Mapping[str, Any]]
    outside: Mapping[str, Any]
    cleaned_at: int | None


COLUMNS = [DeletedRun.__table__.columns[name] for name in DeletedRow.__slots__]


class Deletions:
    """Deletes runs, and reads the records of deleted ones."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def obstacle(self, run: str, begun: bool = False) -> str | None:
        """Returns why a run cannot be deleted, whoever holds it; None if it can be.

        begun: whether one that has begun may be deleted.
        """
        with self._database.read() as connection:
            return _obstacle(connection, run, begun)

    def delete(
        self, fence: Fence, by: str, why: str, outside: Mapping[str, Any], removed: Mapping[str, Any] | None = None
    ) -> DeletedRow:
        """Removes every row of a run, and records the deletion; the fence is no longer valid.

        outside: what the run may have left outside the ledger and its folder; `experiments`, those of MLflow in which
            the run may exist, and `tracked`, its names in other trackers, are added to it.
        removed: what is removed with a run that has begun, for the last link of its audit chain; None if it must not have
            begun.

        Raises `Fenced`; `DeletionRefused` if the run has begun although it must not, or if another run is a fork of it.
        """
        with self._database.fenced(fence) as (connection, now):
            head = lock_run(connection, self._database, fence.run)
            obstacle = _obstacle(connection, fence.run, removed is not None)
            if obstacle is not None:
                raise DeletionRefused(obstacle)
            what = {} if removed is None else {"removed": dict(removed)}
            append(connection, head, DELETED, {"by": by, "why": why, "term": fence.term, **what})
            newest = select(Revision.spec).where(Revision.run == fence.run)
            row = {
                "run": fence.run,
                "spec_name": head.spec_name,
                "number": head.number,
                "by": by,
                "why": why,
                "created_at": head.created_at,
                "deleted_at": now,
                "spec": connection.execute(newest.order_by(Revision.revision.desc()).limit(1)).scalar_one(),
                "links": _links(connection, fence.run),
                "outside": {
                    **outside,
                    "experiments": _experiments(connection, fence.run),
                    "tracked": _tracked(connection, fence.run),
                },
                "cleaned_at": None,
            }
            connection.execute(insert(DeletedRun), row)
            _remove_rows(connection, fence.run)
        return DeletedRow(**{name: row[name] for name in DeletedRow.__slots__})

    def find(self, run: str) -> DeletedRow | None:
        """Returns a deleted run by its id; None if no run of this id was deleted."""
        with self._database.read() as connection:
            row = connection.execute(select(*COLUMNS).where(DeletedRun.run == run)).one_or_none()
        return None if row is None else DeletedRow(**row._mapping)

    def list(self, limit: int = 1000) -> tuple[DeletedRow, ...]:
        """Returns the runs deleted last, the last one first."""
        query = select(*COLUMNS).order_by(DeletedRun.deleted_at.desc(), DeletedRun.run).limit(limit)
        with self._database.read() as connection:
            return tuple(DeletedRow(**row._mapping) for row in connection.execute(query))

    def cleaned(self, run: str) -> None:
        """Records that nothing of a deleted run is left outside the ledger."""
        with self._database.write() as connection:
            done = update(DeletedRun).where(DeletedRun.run == run, DeletedRun.cleaned_at.is_(None))
            connection.execute(done.values(cleaned_at=self._database.now()))


def _obstacle(connection: Connection, run: str, begun: bool) -> str | None:
    """Returns why a run cannot be deleted; None if it has no fork and, unless `begun`, no commit, checkpoint or alias."""
    forks: tuple[Any, Callable[[Any], str]] = (
        select(func.max(Branch.run)).where(Branch.parent_run == run, Branch.run != run),
        lambda fork: f"run {fork} is a fork of it",
    )
    signs_of_work: tuple[tuple[Any, Callable[[Any], str]], ...] = (
        (
            select(func.max(Iteration.iteration)).where(Iteration.run == run),
            lambda last: f"it has begun: iteration {last} is committed",
        ),
        (
            select(func.max(CheckpointRow.iteration)).where(CheckpointRow.run == run, CheckpointRow.term != COPIED),
            lambda last: f"it has begun: it has a checkpoint of iteration {last}",
        ),
        (
            select(func.max(AliasMoveTable.alias)).where(AliasMoveTable.run == run),
            lambda alias: f"its checkpoint has the alias {alias}",
        ),
    )
    for query, text in (forks, *(() if begun else signs_of_work)):
        found = connection.execute(query).scalar_one()
        if found is not None:
            return text(found)
    return None


def _links(connection: Connection, run: str) -> list[dict[str, Any]]:
    rows = connection.execute(select(*Link.__table__.columns).where(Link.run == run).order_by(Link.seq))
    return [asdict(EventRow(**row._mapping)) for row in rows]


def _experiments(connection: Connection, run: str) -> list[str]:
    """Returns MLflow's experiments in which the run may exist: those of the creations that were ever sent there."""
    sent = select(Outbox.payload).where(Outbox.run == run, Outbox.kind == CREATION, Outbox.claims > 0)
    return sorted({str(row.payload["experiment"]) for row in connection.execute(sent.where(Outbox.lane == MLFLOW))})


def _tracked(connection: Connection, run: str) -> list[dict[str, str]]:
    """Returns the run's names in trackers other than MLflow, in the order in which they were created."""
    made = select(Outbox.lane, Outbox.external_id).where(Outbox.run == run, Outbox.kind == CREATION)
    named = made.where(Outbox.lane != MLFLOW, Outbox.external_id.is_not(None)).order_by(Outbox.seq)
    return [{"tracker": row.lane, "name": row.external_id} for row in connection.execute(named)]


def _remove_rows(connection: Connection, run: str) -> None:
    """Deletes the run's rows in all tables, referring tables first."""
    series = select(MetricSeries.id).where(MetricSeries.run == run)
    connection.execute(delete(MetricPoint).where(MetricPoint.series.in_(series)))
    families = Lease.subject.in_([subject_of(kind, run) for kind in (SWEEP, SOUP)])
    followers = Lease.subject.startswith(subject_of(SUITE, f"{run}/"), autoescape=True)
    connection.execute(delete(Lease).where(families | followers))
    for table in reversed(Base.metadata.sorted_tables):
        if "run" in table.columns and table is not DeletedRun.__table__:
            connection.execute(delete(table).where(table.columns["run"] == run))
    connection.execute(delete(RunTable).where(RunTable.id == run))
