"""Helpers of the ledger's tests: a clock, holders, commits, and the contents of a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select

from db.core.engine import Fence
from db.core.holder import Holder
from db.core.models import Base, ControlStateTable, Event, Iteration, MetricPoint, MetricSeries
from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.metrics import Metric


class SimulatedClock:
    """A clock in milliseconds since 1970 that moves only when told to."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * 1000)


def holder(text: str, pid: int = 1) -> Holder:
    """Returns a holder on another host, so that this host cannot tell whether it is alive."""
    return Holder("far-away", "boot", pid, 1, text)


def commit_of(iteration: int, branch: int = 0, metrics: Sequence[Metric] | None = None) -> IterationCommit:
    points = [Metric("reward", iteration / 10), Metric("seconds", 1.5, "timing")] if metrics is None else metrics
    return IterationCommit(
        branch=branch,
        iteration=iteration,
        control_state={"cursor": iteration * 8},
        logged_at_ms=1000 + iteration,
        experience_digest=f"experience {branch}.{iteration}" if iteration else None,
        weights_digest=f"weights {branch}.{iteration}",
        fingerprint={"loss": 0.5},
        metrics=points,
    )


def commit_through(ledger: Ledger, fence: Fence, iterations: Sequence[int], branch: int = 0) -> None:
    for iteration in iterations:
        ledger.commits.commit(fence, commit_of(iteration, branch))


def everything(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """Returns every row of every table, however long a loaded machine takes to ask for them."""
    with ledger._database.read(patience_ms=600_000) as connection:
        return {
            name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for name, table in Base.metadata.tables.items()
        }


def assert_consistent(ledger: Ledger, iterations: int, run: str = "toy-1", outbox: int | None = None) -> None:
    """Checks that iterations have no gaps or duplicates, and that all records of an iteration exist or none."""
    with ledger._database.read() as connection:
        rows = connection.execute(
            select(Iteration.iteration, Iteration.term).where(Iteration.run == run).order_by(Iteration.iteration)
        ).all()
        states = (
            connection.execute(
                select(ControlStateTable.iteration)
                .where(ControlStateTable.run == run)
                .order_by(ControlStateTable.iteration)
            )
            .scalars()
            .all()
        )
        commits = connection.execute(
            select(Event.body).where(Event.run == run, Event.kind == "commit").order_by(Event.seq)
        ).scalars()
        assert [body["iteration"] for body in commits] == list(range(iterations))
        if connection.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
    assert [row.iteration for row in rows] == list(range(iterations)) == list(states)
    assert [row.term for row in rows] == sorted(row.term for row in rows)
    assert ledger.runs.find(run).iteration == iterations - 1
    assert sum(ledger.outbox.counts(run)) == (iterations if outbox is None else outbox)
    assert point_count(ledger, run) == 2 * iterations
    assert ledger.events.verify(run) is None


def point_count(ledger: Ledger, run: str) -> int:
    """Returns the number of points that a run has written, on all its branches."""
    query = select(func.count()).select_from(MetricPoint).join(MetricSeries, MetricPoint.series == MetricSeries.id)
    with ledger._database.read() as connection:
        return int(connection.execute(query.where(MetricSeries.run == run)).scalar_one())
