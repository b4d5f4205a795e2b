"""Metric series for charts: a limited number of buckets, each aggregated by the database.

Reads only, along the current branch's line. The width of a bucket is a power of two, and buckets begin at
multiples of it, so a growing series keeps its existing buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, Connection, func, literal, select

from db.core.ancestry import IterationRange, ancestry
from db.core.engine import Database
from db.core.models import MetricPoint, MetricSeries, RunTable


@dataclass(frozen=True, slots=True)
class Bucket:
    """The points of the steps first..last: their number, and their lowest, highest and mean value."""

    first: int
    last: int
    count: int
    low: float
    high: float
    mean: float


@dataclass(frozen=True, slots=True)
class ReducedSeries:
    """A metric in buckets of `width` steps, in order; there are no buckets if it has no points."""

    key: str
    metric_class: str
    width: int
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """A metric of a run.

    metric_class: result or timing.
    """

    key: str
    metric_class: str


Full = dict[tuple[int, int, int, int], tuple[Bucket, ...]]
"""Buckets that can no longer change, by series, branch, first step and width."""
REMEMBERED = 200_000
"""Maximum number of cached buckets over all series: about 50 MB."""


def bucket_width(first: int, last: int, buckets: int) -> int:
    """Returns the number of steps per bucket, a power of two.

    With this width, the steps first..last fill at most `buckets` buckets, not counting a partial bucket at either end.
    """
    steps = max(1, last - first + 1)
    return 1 << max(0, (-(-steps // buckets) - 1).bit_length())


class SeriesReader:
    """Reads series of one run at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._full: Full = {}

    def keys(self, run: str) -> tuple[SeriesKey, ...]:
        """Returns the metrics along the run's line, sorted. Raises `RunNotFound`."""
        with self._database.read() as connection:
            runs = {span.run for span in ancestry(connection, run)}
            rows = connection.execute(
                select(MetricSeries.key, MetricSeries.metric_class).where(MetricSeries.run.in_(runs)).distinct()
            )
            return tuple(SeriesKey(row.key, row.metric_class) for row in sorted(rows, key=lambda row: row.key))

    def reduced(
        self, run: str, keys: Sequence[str], buckets: int, first: int = 0, last: int | None = None
    ) -> tuple[ReducedSeries, ...]:
        """Returns series in the order of their keys; unknown ones are empty. Raises `RunNotFound`.

        last: the last step; by default the newest.
        """
        with self._database.read() as connection:
            ranges = ancestry(connection, run)
            newest = connection.execute(select(RunTable.iteration).where(RunTable.id == run)).scalar_one()
            end = newest if last is None else min(last, newest)
            width = bucket_width(first, end, buckets)
            classes: dict[str, str] = {}
            found: dict[str, list[Bucket]] = {key: [] for key in keys}
            for span in ranges:
                part = IterationRange(span.run, span.branch, max(first, span.first), min(end, span.last))
                if part.first <= part.last:
                    _add(connection=connection, part=part, width=width, found=found, classes=classes, full=self._full)
        return tuple(
            ReducedSeries(key, classes.get(key, ""), width, tuple(_joined(found[key], width)))
            for key in dict.fromkeys(keys)
        )


def _add(
    connection: Connection,
    part: IterationRange,
    width: int,
    found: dict[str, list[Bucket]],
    classes: dict[str, str],
    full: Full,
) -> None:
    """Adds the buckets of one range of iterations to the buckets of their series, by key."""
    rows = connection.execute(
        select(MetricSeries.id, MetricSeries.key, MetricSeries.metric_class).where(
            MetricSeries.run == part.run, MetricSeries.key.in_(found)
        )
    )
    for row in rows.all():
        classes[row.key] = row.metric_class
        found[row.key] += _buckets(connection=connection, series=row.id, part=part, width=width, full=full)


def _buckets(connection: Connection, series: int, part: IterationRange, width: int, full: Full) -> tuple[Bucket, ...]:
    """Returns a series' buckets in a span, without rereading those that were already full."""
    key = (series, part.branch, part.first, width)
    known = full.get(key, ())
    kept = tuple(bucket for bucket in known if bucket.first // width * width + width - 1 <= part.last)
    start = kept[-1].first // width * width + width if kept else part.first
    buckets = kept + _reduced(
        connection=connection, series=series, branch=part.branch, first=start, last=part.last, width=width
    )
    if len(buckets) - 1 > len(known):
        if sum(map(len, full.values())) + len(buckets) > REMEMBERED:
            full.clear()
        # Steps are committed in order, so a bucket that is followed by another one is complete.
        full[key] = buckets[:-1]
    return buckets


def _reduced(connection: Connection, series: int, branch: int, first: int, last: int, width: int) -> tuple[Bucket, ...]:
    number = (MetricPoint.step // literal(width, BigInteger)).label("number")
    rows = connection.execute(
        select(
            number,
            func.min(MetricPoint.step).label("first"),
            func.max(MetricPoint.step).label("last"),
            func.count().label("points"),
            func.min(MetricPoint.value).label("low"),
            func.max(MetricPoint.value).label("high"),
            func.avg(MetricPoint.value).label("mean"),
        )
        .where(MetricPoint.series == series, MetricPoint.branch == branch, MetricPoint.step.between(first, last))
        .group_by(number)
        .order_by(number)
    )
    return tuple(
        Bucket(first=row.first, last=row.last, count=row.points, low=row.low, high=row.high, mean=row.mean)
        for row in rows
    )


def _joined(buckets: Sequence[Bucket], width: int) -> list[Bucket]:
    """Merges buckets that two ranges share."""
    joined: list[Bucket] = []
    for bucket in buckets:
        if joined and joined[-1].last // width == bucket.first // width:
            before = joined.pop()
            count = before.count + bucket.count
            mean = (before.mean * before.count + bucket.mean * bucket.count) / count
            low = min(before.low, bucket.low)
            high = max(before.high, bucket.high)
            bucket = Bucket(first=before.first, last=bucket.last, count=count, low=low, high=high, mean=mean)
        joined.append(bucket)
    return joined
