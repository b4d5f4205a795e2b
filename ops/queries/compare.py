"""Compares runs: differences between their specs, their digests, their newest metrics, and their series over the same steps.

Consumes the ledger; produces `RunComparison`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from db.ledger import Ledger
from flows.run.dotted_keys import dotted_text
from flows.run.results import RunDigests, run_digests
from ops.presentation.columns import Column, Columns, DurationCell, RunCell, StateCell
from ops.queries.run_list import ListedRun, find_line
from ops.queries.series import RunSeries, newest_values, series

SHOWN_OF_DIGEST = 16
"""Number of a digest's first digits that lists show."""
MOST_RUNS = 8
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
class ComparedDigest:
    """A digest of what the runs computed up to their newest commits.

    name: `weights_digest`, `experience_digest` or `metrics_digest`.
    values: by run; None if the run has none yet.
    equal: True if all runs have the same one.
    """

    name: str
    values: Mapping[str, str | None]
    equal: bool


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A comparison of runs."""

    runs: tuple[ListedRun, ...]
    differences: tuple[Difference, ...]
    digests: tuple[ComparedDigest, ...]
    metrics: tuple[ComparedMetric, ...]
    series: tuple[RunSeries, ...]


def compare(ledger: Ledger, runs: Sequence[str], keys: Sequence[str] = (), buckets: int = 300) -> RunComparison:
    """Compares runs, given by their full ids. Raises `RunNotFound`."""
    names = list(dict.fromkeys(runs))[:MOST_RUNS]
    lines = tuple(find_line(ledger, name) for name in names)
    specs = {name: dotted_text(ledger.runs.revision(name).spec) for name in names}
    newest = {name: newest_values(ledger, name) for name in names}
    return RunComparison(
        runs=lines,
        differences=differences(specs),
        digests=compared_digests(ledger, names),
        metrics=tuple(
            ComparedMetric(key, {name: values[key] for name, values in newest.items() if key in values})
            for key in sorted({key for values in newest.values() for key in values})
        ),
        series=tuple(series(ledger, name, keys, buckets) for name in names) if keys else (),
    )


def differences(specs: Mapping[str, Mapping[str, str]]) -> tuple[Difference, ...]:
    """Returns the keys whose values are not the same in all specs."""
    keys = sorted({key for spec in specs.values() for key in spec})
    rows = (Difference(key, {name: spec.get(key) for name, spec in specs.items()}) for key in keys)
    return tuple(row for row in rows if len(set(row.values.values())) > 1)


def compared_digests(ledger: Ledger, runs: Sequence[str]) -> tuple[ComparedDigest, ...]:
    """Returns the digests of runs, given by their full ids. Raises `RunNotFound`."""
    found = {run: asdict(run_digests(ledger, run)) for run in runs}
    compared = []
    for each in fields(RunDigests):
        values = {run: digests[each.name] for run, digests in found.items()}
        equal = len(set(values.values())) == 1 and None not in values.values()
        compared.append(ComparedDigest(each.name, values, equal))
    return tuple(compared)


def side_by_side(runs: Sequence[ListedRun]) -> Columns[ListedRun]:
    """Returns the columns of the runs themselves; that of rewards only if one of them has any."""
    reward: Columns[ListedRun] = (Column("reward", lambda run: run.reward, number=True),)
    return (
        Column("run", lambda run: RunCell(run.id), heads=True),
        Column("state", lambda run: StateCell(run.state)),
        Column("iteration", lambda run: f"{max(0, run.iteration)}/{run.target_iterations}", number=True),
        *(reward if any(run.reward is not None for run in runs) else ()),
        Column("time per iteration", lambda run: DurationCell(run.iteration_seconds), number=True),
    )


def digest_columns(runs: Sequence[ListedRun]) -> Columns[ComparedDigest]:
    """Returns the columns of the digests: the name, the beginning of each run's, and whether all are equal."""
    return (
        Column("digest", lambda row: row.name, heads=True),
        *(_digest_column(run.id) for run in runs),
        Column("compared", lambda row: "equal" if row.equal else "different"),
    )


def _digest_column(run: str) -> Column[ComparedDigest]:
    return Column(run, lambda row: (row.values[run] or "-")[:SHOWN_OF_DIGEST], verbatim=True)


def difference_columns(runs: Sequence[ListedRun]) -> Columns[Difference]:
    """Returns the columns of the specs' differences: the key, then each run's value."""
    return (
        Column("key of the spec", lambda row: row.key, heads=True, style="break"),
        *(_difference_column(run.id) for run in runs),
    )


def _difference_column(run: str) -> Column[Difference]:
    return Column(
        run, lambda row: "not set" if row.values[run] is None else row.values[run], style="break", verbatim=True
    )


def value_columns(runs: Sequence[ListedRun]) -> Columns[ComparedMetric]:
    """Returns the columns of the newest metrics: the metric, then each run's value."""
    return (
        Column("metric", lambda row: row.key, heads=True, style="break"),
        *(_value_column(run.id) for run in runs),
    )


def _value_column(run: str) -> Column[ComparedMetric]:
    return Column(run, lambda row: row.values.get(run), number=True, verbatim=True)
