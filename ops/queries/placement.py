"""Placement decisions of a run, and one iteration's decision explained, with a Gantt chart of its devices.

Consumes the ledger and the work files of the run folders; produces `Decisions` and `PlacementView`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from db.core.errors import RunNotFound
from db.ledger import Ledger
from db.read.browse import DecisionLine
from flows.placement.explain import Explanation, Gantt, LengthStatistics, RoleUse, SeenWork, explain, gantt_of
from flows.placement.record import PlacementRecord
from flows.placement.seats import SeatSpan
from flows.run.home import Home
from ops.presentation.columns import (
    Cell,
    Column,
    Columns,
    DurationCell,
    LinkCell,
    MomentCell,
    ShareCell,
    SizeCell,
)
from ops.presentation.placement_words import HOW, role_name, roles_text
from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import ROLE_NAMES
from yatt_core.placement.occupancy import Change


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


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} s"


def _seen(work: SeenWork) -> str:
    name = f"iteration {work.iteration} of {work.run}"
    return f"{name}: {work.lost}" if work.lost else name


def _length_columns(
    name: str, lengths: Callable[[SeenWork], LengthStatistics | None]
) -> tuple[Column[SeenWork], Column[SeenWork], Column[SeenWork], Column[SeenWork]]:
    def figure(of: Callable[[LengthStatistics], int]) -> Callable[[SeenWork], Cell]:
        def cell(work: SeenWork) -> Cell:
            found = lengths(work)
            return None if found is None else of(found)

        return cell

    return (
        Column(f"{name} tokens", figure(lambda found: found.tokens), number=True),
        Column("p50", figure(lambda found: found.p50), number=True, verbatim=True),
        Column("p95", figure(lambda found: found.p95), number=True, verbatim=True),
        Column("longest", figure(lambda found: found.longest), number=True),
    )


SEEN: Columns[SeenWork] = (
    Column("based on", _seen, heads=True),
    Column("samples", lambda work: work.samples, number=True),
    *_length_columns("response", lambda work: work.responses),
    *_length_columns("judge", lambda work: work.judgements),
)
CHANGES: Columns[Change] = (
    Column("instance", lambda change: str(change.instance), number=True),
    Column("from", lambda change: role_name(change.before)),
    Column("to", lambda change: role_name(change.after)),
    Column("requested at", lambda change: _seconds(change.asked_s), number=True),
    Column("serves from", lambda change: _seconds(change.serves_s), number=True),
    Column("how", lambda change: HOW[change.how]),
)
ROLES: Columns[RoleUse] = (
    Column("role", lambda use: role_name(use.role), heads=True),
    Column("device time", lambda use: DurationCell(use.device_s), number=True),
    Column("busy", lambda use: DurationCell(use.busy_s if use.role in ROLE_NAMES else None), number=True),
    Column("idle", lambda use: ShareCell(use.idle_fraction if use.role in ROLE_NAMES else None), number=True),
    Column("tokens", lambda use: use.tokens if use.role in ROLE_NAMES else None, number=True),
    Column("tokens/s", lambda use: use.tokens_per_s if use.role in ROLE_NAMES else None, number=True),
)
SEATS: Columns[SeatSpan] = (
    Column("actor", lambda span: span.seat.actor, heads=True),
    Column("node", lambda span: span.seat.node),
    Column("device", lambda span: span.seat.device or "–"),
    Column("from", lambda span: MomentCell(span.since, seconds=True), style="nowrap"),
    Column("to", lambda span: MomentCell(span.until, seconds=True) if span.until else "now", style="nowrap"),
    Column("host memory", lambda span: SizeCell(span.seat.host_bytes or None), number=True),
    Column("GPU memory", lambda span: SizeCell(span.seat.gpu_bytes or None), number=True),
)


def decision_columns(address: Callable[[int], str]) -> Columns[DecisionView]:
    """Returns the columns of decisions.

    address: returns the address of an iteration's placement.
    """
    return (
        Column("iteration", lambda row: LinkCell(str(row.iteration), address(row.iteration)), number=True),
        Column("mode", lambda row: row.mode),
        Column("start", lambda row: roles_text(row.start), style="nowrap"),
        Column("reason", lambda row: row.reason, style="text"),
        Column("predicted", lambda row: DurationCell(row.predicted_s), number=True),
        Column("actual", lambda row: DurationCell(row.collect_s), number=True),
    )
