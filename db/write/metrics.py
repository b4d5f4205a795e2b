"""Metric points: written once, in the commit; read along the current branch's line.

There are many points, so they refer to (run, key) by the number of a series. Metrics of class result are functions of
the spec; metrics of class timing are not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, insert, select

from db.core.ancestry import IterationRange, ancestry
from db.core.engine import Database
from db.core.errors import Conflict, LedgerError
from db.core.made_once import given, matching
from db.core.models import MetricPoint, MetricSeries

RESULT = "result"
TIMING = "timing"


_SERIES = select(MetricSeries.key, MetricSeries.id, MetricSeries.metric_class).where(*matching(MetricSeries, "run"))
"""Made once: each commit reads them."""


class Metric(NamedTuple):
    """The value of a metric at one iteration.

    metric_class: result or timing.
    """

    key: str
    value: float
    metric_class: str = RESULT


class Point(NamedTuple):
    """A value of a series.

    step: the iteration.
    """

    key: str
    step: int
    value: float


def write_points(connection: Connection, run: str, branch: int, step: int, metrics: Sequence[Metric]) -> None:
    """Adds an iteration's points.

    Raises `LedgerError` for a duplicate key or a value that is not finite; `Conflict` if the class of a key
    changed.
    """
    classes: dict[str, str] = {}
    for metric in metrics:
        if metric.key in classes:
            raise LedgerError(f"metric {metric.key!r} is given twice for iteration {step}")
        if not math.isfinite(metric.value):
            raise LedgerError(f"metric {metric.key!r} of iteration {step} is {metric.value}, not a finite number")
        classes[metric.key] = metric.metric_class
    numbers = _series_numbers(connection, run, classes)
    rows = [
        {"series": numbers[metric.key], "branch": branch, "step": step, "value": float(metric.value)}
        for metric in metrics
    ]
    if rows:
        connection.execute(insert(MetricPoint), rows)


def points_at(connection: Connection, run: str, branch: int, step: int) -> dict[str, float]:
    """Returns all values of one iteration, by key."""
    rows = connection.execute(
        select(MetricSeries.key, MetricPoint.value)
        .join(MetricPoint, MetricPoint.series == MetricSeries.id)
        .where(MetricSeries.run == run, MetricPoint.branch == branch, MetricPoint.step == step)
    )
    return dict(sorted((row.key, row.value) for row in rows))


def _series_numbers(connection: Connection, run: str, classes: Mapping[str, str]) -> dict[str, int]:
    known = _series(connection, run)
    missing = [{"run": run, "key": key, "metric_class": classes[key]} for key in sorted(classes) if key not in known]
    if missing:
        connection.execute(insert(MetricSeries), missing)
        known = _series(connection, run)
    for key, metric_class in classes.items():
        if known[key][1] != metric_class:
            raise Conflict(f"run {run}: metric {key!r} is of class {known[key][1]}, not {metric_class}")
    return {key: number for key, (number, _) in known.items()}


def _series(connection: Connection, run: str) -> dict[str, tuple[int, str]]:
    rows = connection.execute(_SERIES, given(run=run))
    return {row.key: (row.id, row.metric_class) for row in rows}


class Metrics:
    """Reads a run's points along its current line, across rollbacks and forks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def history(self, run: str, key: str) -> list[tuple[int, float]]:
        """Returns (step, value) of a metric in order of step; empty for an unknown metric. Raises `RunNotFound`."""
        with self._database.read() as connection:
            return [(point.step, point.value) for point in _along(connection, ancestry(connection, run), key)]

    def newest(self, run: str, key: str, count: int) -> list[tuple[int, float]]:
        """Returns (step, value) of a metric's newest `count` points, in order of step. Raises `RunNotFound`."""
        found: list[tuple[int, float]] = []
        points = select(MetricPoint.step, MetricPoint.value).order_by(MetricPoint.step.desc())
        with self._database.read() as connection:
            for span in reversed(ancestry(connection, run)):
                number = _series_number(connection, span.run, key)
                if number is not None and len(found) < count:
                    rows = connection.execute(points.where(_within(number, span)).limit(count - len(found)))
                    found += [(row.step, row.value) for row in rows]
        return found[::-1]

    def latest(self, run: str) -> dict[str, Point]:
        """Returns the newest point of every metric. Raises `RunNotFound`."""
        newest: dict[str, Point] = {}
        last = select(MetricPoint.step, MetricPoint.value).order_by(MetricPoint.step.desc()).limit(1)
        with self._database.read() as connection:
            for span in ancestry(connection, run):
                for key, (number, _) in _series(connection, span.run).items():
                    row = connection.execute(last.where(_within(number, span))).one_or_none()
                    if row is not None:
                        newest[key] = Point(key, row.step, row.value)
        return dict(sorted(newest.items()))

    def at(self, run: str, branch: int, step: int) -> dict[str, float]:
        """Returns all values of an iteration that the run itself committed, by key."""
        with self._database.read() as connection:
            return points_at(connection, run, branch, step)

    def result_points(self, run: str) -> Iterator[Point]:
        """Yields all points of class result in order of (key, step): the input of a run's metrics digest."""
        return self.points(run, (RESULT,))

    def points(self, run: str, classes: Collection[str] = (RESULT, TIMING)) -> Iterator[Point]:
        """Yields all points of some classes in order of (key, step). Raises `RunNotFound`."""
        with self._database.read() as connection:
            ranges = ancestry(connection, run)
            keys = {
                key
                for name in {span.run for span in ranges}
                for key, (_, metric_class) in _series(connection, name).items()
                if metric_class in classes
            }
            for key in sorted(keys):
                yield from _along(connection, ranges, key)


def _along(connection: Connection, ranges: Sequence[IterationRange], key: str) -> Iterator[Point]:
    points = select(MetricPoint.step, MetricPoint.value).order_by(MetricPoint.step)
    for span in ranges:
        number = _series_number(connection, span.run, key)
        if number is not None:
            for row in connection.execute(points.where(_within(number, span))):
                yield Point(key, row.step, row.value)


def _series_number(connection: Connection, run: str, key: str) -> int | None:
    query = select(MetricSeries.id).where(MetricSeries.run == run, MetricSeries.key == key)
    return connection.execute(query).scalar_one_or_none()


def _within(number: int, span: IterationRange) -> ColumnElement[bool]:
    return and_(
        MetricPoint.series == number,
        MetricPoint.branch == span.branch,
        MetricPoint.step.between(span.first, span.last),
    )
