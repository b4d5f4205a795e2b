"""Placement decisions of a run, and one iteration's decision explained, with a Gantt chart of its devices.

Consumes the ledger and the work files of the run folders; produces `Decisions` and `PlacementView`.
"""

from __future__ import annotations

from dataclasses import dataclass

from db.core.errors import RunNotFound
from db.ledger import Ledger
from db.read.browse import DecisionLine
from flows.placement.explain import Explanation, Gantt, explain, gantt_of
from flows.placement.record import PlacementRecord
from flows.run.home import Home
from yatt_core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class DecisionView:
    """The summary of a decision.

    start: one letter per instance for its first role.
    predicted_s, collect_s: predicted and measured seconds of collect.
    recorded_at: milliseconds since 1970.
    """

    iteration: int
    branch: int
    mode: str
    start: str
    reason: str
    predicted_s: float | None
    collect_s: float | None
    recorded_at: int


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of a run, newest first.

    next: the value of `before` for the next page; None on the last page.
    """

    run: str
    decisions: tuple[DecisionView, ...]
    next: int | None


@dataclass(frozen=True, slots=True)
class PlacementView:
    """An iteration's placement.

    gantt: None if nothing can be drawn.
    gantt_missing: why there is no chart; empty if there is one.
    """

    explanation: Explanation
    gantt: Gantt | None
    gantt_missing: str


def decisions(ledger: Ledger, run: str, limit: int = 50, before: int | None = None) -> Decisions:
    """Returns the decisions along the current line for iterations smaller than `before`. Raises `RunNotFound`."""
    rows = ledger.browse.decisions(run, limit, before)
    return Decisions(run, tuple(_view(row) for row in rows), rows[-1].iteration if len(rows) >= limit else None)


def placement(ledger: Ledger, home: Home, run: str, iteration: int) -> PlacementView:
    """Explains one iteration. Raises `RunNotFound`; `ConfigurationError` if the iteration has no placement."""
    if ledger.run_list.line(run) is None:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    record = PlacementRecord(ledger, home, run)
    found = record.at(iteration)
    try:
        gantt = gantt_of(found)
        missing = ""
    except ConfigurationError as error:
        gantt = None
        missing = str(error)
    return PlacementView(explain(found, record.seats(iteration), record.disks(iteration)), gantt, missing)


def _view(row: DecisionLine) -> DecisionView:
    return DecisionView(
        iteration=row.iteration,
        branch=row.branch,
        mode=str(row.decision.get("mode", "")),
        start=str(row.decision.get("start", "")),
        reason=row.reason,
        predicted_s=row.prediction.get("collect"),
        collect_s=(row.outcome or {}).get("collect_s"),
        recorded_at=row.recorded_at,
    )
