"""What an audit compares with the chain and the tracker: a run's committed iterations, and the metrics sent for each.

Reads only the run itself, on all of its branches; writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select

from db.core.engine import Database
from db.core.models import Iteration, MetricPoint, MetricSeries, Outbox
from db.write.commit import COMMITTED, CommitRow
from db.write.outbox import METRICS, MLFLOW


@dataclass(frozen=True, slots=True)
class ToldIteration:
    """An iteration's metrics according to the outbox.

    at_ms: the timestamp of the points.
    sent: True if the row was claimed at least once, so the points may have arrived.
    """

    branch: int
    iteration: int
    at_ms: int
    metrics: Mapping[str, float]
    delivered: bool
    sent: bool


class Audits:
    """Reads the data of an audit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def commits(self, run: str) -> list[CommitRow]:
        """Returns the committed iterations of every branch of the run itself, including superseded ones.

        They are ordered by branch and iteration.
        """
        query = COMMITTED.where(Iteration.run == run).order_by(Iteration.branch, Iteration.iteration)
        with self._database.read() as connection:
            return [CommitRow(**row._mapping) for row in connection.execute(query)]

    def told(self, run: str) -> list[ToldIteration]:
        """Returns the metrics in the outbox for MLflow, in the order in which they were written."""
        points: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
        values = (
            select(MetricSeries.key, MetricPoint.branch, MetricPoint.step, MetricPoint.value)
            .join(MetricSeries, MetricPoint.series == MetricSeries.id)
            .where(MetricSeries.run == run)
        )
        rows = select(*Outbox.__table__.columns).where(Outbox.run == run, Outbox.lane == MLFLOW)
        rows = rows.where(Outbox.kind == METRICS).order_by(Outbox.seq)
        with self._database.read() as connection:
            for point in connection.execute(values):
                points[point.branch, point.step][point.key] = point.value
            return [
                ToldIteration(
                    branch=row.payload["branch"],
                    iteration=row.payload["iteration"],
                    at_ms=row.logged_at,
                    metrics=points[row.payload["branch"], row.payload["iteration"]],
                    delivered=row.delivered_at is not None,
                    sent=row.claims > 0,
                )
                for row in connection.execute(rows)
            ]
