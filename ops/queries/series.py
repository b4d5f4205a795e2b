"""Metric series for charts, reduced by the database to a few hundred buckets, however long the run is.

Consumes the ledger; produces `SeriesView`, in the columns that plotting libraries expect, and newest values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from db.ledger import Ledger
from db.read.series import ReducedSeries, SeriesKey
from yatt_core.spec.sections.metric_names import is_occasional

KEYS = 32
BUCKETS = 1024
"""Maximum number of series per request, and of buckets per series."""


@dataclass(frozen=True, slots=True)
class SeriesView:
    """A series, as columns of equal length with one value per bucket.

    width: number of steps in a bucket.
    steps: each bucket's first step.
    low, high, mean: each bucket's lowest, highest and mean value.
    """

    key: str
    metric_class: str
    width: int
    steps: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    mean: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunSeries:
    """Series of a run along its current line; a series that the run does not have is empty."""

    run: str
    series: tuple[SeriesView, ...]


def series(
    ledger: Ledger, run: str, keys: Sequence[str], buckets: int = 300, first: int = 0, last: int | None = None
) -> RunSeries:
    """Returns series over the steps from `first` to `last`, by default to the newest step. Raises `RunNotFound`."""
    found = ledger.series.reduced(run=run, keys=keys[:KEYS], buckets=min(buckets, BUCKETS), first=first, last=last)
    return RunSeries(run, tuple(_view(each) for each in found))


def series_keys(ledger: Ledger, run: str) -> tuple[SeriesKey, ...]:
    """Returns the metrics recorded along the run's line. Raises `RunNotFound`."""
    return ledger.series.keys(run)


def newest_values(ledger: Ledger, run: str) -> dict[str, float]:
    """Returns the newest value of each metric of a run, by key. Raises `RunNotFound`.

    A metric that is only there if something happened has none unless it happened in the newest iteration.
    """
    points = ledger.metrics.latest(run)
    newest = max((point.step for point in points.values()), default=0)
    return {key: each.value for key, each in points.items() if each.step == newest or not is_occasional(key)}


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
