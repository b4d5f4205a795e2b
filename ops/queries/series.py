"""Metric series for pictures: reduced by the database to some hundreds of buckets, however long the run is.

Consumes the ledger; produces `SeriesView`, in columns as plotting libraries take them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from db.ledger import Ledger
from db.read.series import ReducedSeries, SeriesKey

KEYS, BUCKETS = 32, 1024
"""Most series at a time, and most buckets of one."""


@dataclass(frozen=True, slots=True)
class SeriesView:
    """A series. width: steps to a bucket. Columns of equal length: each bucket's first step, and lowest, highest, mean value."""

    key: str
    metric_class: str
    width: int
    steps: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    mean: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunSeries:
    """Series of a run along its current line; those that it has not are empty."""

    run: str
    series: tuple[SeriesView, ...]


def series(
    ledger: Ledger, run: str, keys: Sequence[str], buckets: int = 300, first: int = 0, last: int | None = None
) -> RunSeries:
    """Series of the steps first..last, to the newest if none is given. Raises `RunNotFound`."""
    found = ledger.series.reduced(run, keys[:KEYS], min(buckets, BUCKETS), first, last)
    return RunSeries(run, tuple(_view(each) for each in found))


def series_keys(ledger: Ledger, run: str) -> tuple[SeriesKey, ...]:
    """The metrics that there are along the run's line. Raises `RunNotFound`."""
    return ledger.series.keys(run)


def _view(found: ReducedSeries) -> SeriesView:
    return SeriesView(
        key=found.key,
        metric_class=found.metric_class,
        width=found.width,
        steps=tuple(bucket.first for bucket in found.buckets),
        low=tuple(bucket.low for bucket in found.buckets),
        high=tuple(bucket.high for bucket in found.buckets),
        mean=tuple(bucket.mean for bucket in found.buckets),
    )
