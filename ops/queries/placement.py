"""Where each role sat, and why: the newest decisions, and one iteration's decision with its device Gantt.

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
    """A decision at a glance. start: a letter for each instance's first role. Times: seconds; recorded_at in milliseconds."""

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
    """Decisions of a run, the newest first. next: give it as `before` for the following ones; none at the end."""

    run: str
    decisions: tuple[DecisionView, ...]
    next: int | None


@dataclass(frozen=True, slots=True)
class PlacementView:
    """An iteration's placement. gantt: none where nothing can be drawn, as `gantt_missing` says."""

    explanation: Explanation
    gantt: Gantt | None
    gantt_missing: str


def decisions(ledger: Ledger, run: str, limit: int = 50, before: int | None = None) -> Decisions:
    """Decisions of the current line, of iterations less than `before`. Raises `RunNotFound`."""
    rows = ledger.browse.decisions(run, limit, before)
    return Decisions(run, tuple(_view(row) for row in rows), rows[-1].iteration if len(rows) >= limit else None)


def placement(ledger: Ledger, home: Home, run: str, iteration: int) -> PlacementView:
    """One iteration. Raises `RunNotFound`; `ConfigurationError` where the iteration has no placement."""
    if ledger.run_list.line(run) is None:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    found = PlacementRecord(ledger, home, run).at(iteration)
    try:
        gantt, missing = gantt_of(found), ""
    except ConfigurationError as error:
        gantt, missing = None, str(error)
    return PlacementView(explain(found), gantt, missing)


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
