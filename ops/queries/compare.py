"""Compares runs: differences between their specs, their newest metrics, and their series over the same steps.

Consumes the ledger; produces `RunComparison`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db.ledger import Ledger
from flows.run.dotted_keys import dotted_text
from ops.queries.run_list import ListedRun, find_line
from ops.queries.series import RunSeries, series

RUNS = 8
"""Maximum number of runs compared at a time."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key of the specs with its value in each run, as JSON; None if a run does not have it."""

    key: str
    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """The newest value of a metric in each run that has it, by run."""

    key: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A comparison of runs."""

    runs: tuple[ListedRun, ...]
    differences: tuple[Difference, ...]
    metrics: tuple[ComparedMetric, ...]
    series: tuple[RunSeries, ...]


def compare(ledger: Ledger, runs: Sequence[str], keys: Sequence[str] = (), buckets: int = 300) -> RunComparison:
    """Compares runs, given by their full ids. Raises `RunNotFound`."""
    names = list(dict.fromkeys(runs))[:RUNS]
    lines = tuple(find_line(ledger, name) for name in names)
    specs = {name: dotted_text(ledger.runs.revision(name).spec) for name in names}
    latest = {name: ledger.metrics.latest(name) for name in names}
    return RunComparison(
        runs=lines,
        differences=differences(specs),
        metrics=tuple(
            ComparedMetric(key, {name: points[key].value for name, points in latest.items() if key in points})
            for key in sorted({key for points in latest.values() for key in points})
        ),
        series=tuple(series(ledger, name, keys, buckets) for name in names) if keys else (),
    )


def differences(specs: Mapping[str, Mapping[str, str]]) -> tuple[Difference, ...]:
    """Returns the keys whose values are not the same in all specs."""
    keys = sorted({key for spec in specs.values() for key in spec})
    rows = (Difference(key, {name: spec.get(key) for name, spec in specs.items()}) for key in keys)
    return tuple(row for row in rows if len(set(row.values.values())) > 1)
