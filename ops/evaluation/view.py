"""The evaluations of a run's suites, with their history and regressions, for commands, pages and the API.

Consumes rows of the ledger. Produces for each suite its evaluations, oldest first, each with what it is significantly worse than.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from db.ledger import Ledger
from db.write.suites import SuiteRow
from ops.evaluation.words import estimates_of, worse_text
from ops.presentation.columns import (
    BadgeCell,
    Cell,
    Column,
    Columns,
    DigestCell,
    Medium,
    MomentCell,
    SeveralCells,
    SmallCell,
)
from yatt_core.evaluation.history import EvaluationPoint, Regression, regressions
from yatt_core.evaluation.paired import TaskKey, accuracy_of
from yatt_core.evaluation.suites import SuiteSpec, parse_suite, set_names


@dataclass(frozen=True, slots=True)
class SuitePoint:
    """An evaluation of a suite.

    digest: evaluations of the same digest are comparable.
    figures: over all tasks, and by set under `sources`.
    at: milliseconds since 1970.
    worse_than: the earlier evaluations that were significantly better.
    """

    number: int
    digest: str
    branch: int
    iteration: int
    weights_digest: str
    figures: Mapping[str, Any]
    by: str
    at: int
    seconds: float
    worse_than: tuple[Regression, ...]


@dataclass(frozen=True, slots=True)
class SuiteHistory:
    """The evaluations of one suite, oldest first."""

    suite: str
    points: tuple[SuitePoint, ...]


def suite_histories(ledger: Ledger, run: str, suite: str | None = None) -> list[SuiteHistory]:
    """Returns the histories of a run's suites, by name. Raises `RunNotFound`."""
    run = ledger.runs.find(run).id
    seed = int(ledger.runs.revision(run).spec["seed"])
    rows = ledger.suites.of(run, suite)
    return [
        SuiteHistory(name, _points([row for row in rows if row.suite == name], seed))
        for name in sorted({row.suite for row in rows})
    ]


def _points(rows: Sequence[SuiteRow], seed: int) -> tuple[SuitePoint, ...]:
    newest = _spec(rows[-1])
    points = [EvaluationPoint(row.iteration, row.digest, _scores(row)) for row in rows]
    found = regressions(points=points, test=newest.test, level=newest.level, resamples=newest.resamples, seed=seed)
    return tuple(_point(row, worse) for row, worse in zip(rows, found, strict=True))


def _point(row: SuiteRow, worse: Sequence[Regression]) -> SuitePoint:
    return SuitePoint(
        number=row.number,
        digest=row.digest,
        branch=row.branch,
        iteration=row.iteration,
        weights_digest=row.weights_digest,
        figures=row.figures,
        by=row.by,
        at=row.at,
        seconds=row.seconds,
        worse_than=tuple(worse),
    )


def _scores(row: SuiteRow) -> dict[TaskKey, float | None]:
    names = set_names(_spec(row))
    return {(names[task["source"]], task["prompt_id"]): accuracy_of(task) for task in row.results}


def _spec(row: SuiteRow) -> SuiteSpec:
    return parse_suite(dict(row.suite_spec), f"the spec of suite {row.suite}")


class Measured(Protocol):
    """An evaluation with its figures."""

    @property
    def branch(self) -> int: ...
    @property
    def iteration(self) -> int: ...
    @property
    def figures(self) -> Mapping[str, Any]: ...


def _iteration(point: Measured) -> Cell:
    if not point.branch:
        return str(point.iteration)
    return SeveralCells((str(point.iteration), SmallCell(f"of branch {point.branch}")), " ")


def _others(point: Measured) -> str:
    named = estimates_of(dict(point.figures)).items()
    return ", ".join(f"{name} {each['value']:.3f}" for name, each in named) or "–"


def _by_set(point: Measured) -> str:
    return ", ".join(f"{name} {each['accuracy']:.3f}" for name, each in point.figures["sources"].items())


def _worse(point: SuitePoint) -> Cell:
    if not point.worse_than:
        return "–"
    return SeveralCells((BadgeCell("regression", "bad"), worse_text(point.worse_than)), " ")


FIGURES: Columns[Measured] = (
    Column("iteration", _iteration, number=True),
    Column("accuracy", lambda point: f"{point.figures['accuracy']:.3f}", number=True),
    Column(
        "95 % interval",
        lambda point: f"{point.figures['low']:.3f} to {point.figures['high']:.3f}",
        style="nowrap",
    ),
    Column("others", _others),
    Column("by set", _by_set),
)
EVALUATIONS: Columns[SuitePoint] = (
    *FIGURES,
    Column("worse than", _worse),
    Column("weights", lambda point: DigestCell(point.weights_digest), medium=Medium.PAGE),
    Column("evaluated", lambda point: SeveralCells((MomentCell(point.at), SmallCell(f"by {point.by}")), " ")),
)
