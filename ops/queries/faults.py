"""The faults of a run and their cost.

Consumes the ledger; produces `Faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from db.ledger import Ledger
from db.read.browse import FaultRow
from flows.reports.accounting import Crash
from ops.presentation.columns import (
    BadgeCell,
    Cell,
    Column,
    Columns,
    DurationCell,
    LinkCell,
    MomentCell,
    NoteCell,
    SeveralCells,
    SmallCell,
)
from ops.presentation.words import duration, phase_name
from ops.queries.accounts import accounts


@dataclass(frozen=True, slots=True)
class CrashView:
    """A lost driver or a failed attempt, and its cost in seconds.

    at: milliseconds since 1970.
    """

    at: int
    kind: str
    term: int
    iteration: int | None
    phase: str
    reason: str
    restart_seconds: float
    redone_seconds: float
    redone: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Faults:
    """Crashes with their costs, and a page of failed attempts, both newest first.

    since: time of the oldest crash listed, in milliseconds since 1970; None if all crashes are listed.
    next: the value of `before` for the next page of attempts; None on the last page.
    """

    run: str
    since: int | None
    crashes: tuple[CrashView, ...]
    attempts: tuple[FaultRow, ...]
    next: int | None


def faults(ledger: Ledger, run: str, limit: int = 100, before: int | None = None) -> Faults:
    """Returns the faults of a run. Raises `RunNotFound`."""
    crashes = accounts(ledger, run).crashes
    rows = ledger.browse.faults(run, limit, before)
    return Faults(
        run=run,
        since=crashes[-limit].at if len(crashes) > limit else None,
        crashes=tuple(_view(crash) for crash in reversed(crashes[-limit:])),
        attempts=tuple(rows),
        next=rows[-1].ended_at if len(rows) >= limit else None,
    )


def _view(crash: Crash) -> CrashView:
    return CrashView(
        at=crash.at,
        kind=crash.kind,
        term=crash.term,
        iteration=crash.iteration,
        phase=crash.phase,
        reason=crash.reason,
        restart_seconds=crash.restart_seconds,
        redone_seconds=sum(crash.redone.values()),
        redone=crash.redone,
    )


def _redone(crash: CrashView) -> Cell:
    parts = crash.redone.items() if len(crash.redone) > 1 else ()
    return NoteCell(
        DurationCell(crash.redone_seconds), ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in parts)
    )


def crash_columns(sft: bool) -> Columns[CrashView]:
    """Returns the columns of crashes with their costs.

    sft: the spec has supervised fine-tuning.
    """

    def during(crash: CrashView) -> Cell:
        phase = phase_name(crash.phase, sft)
        where = "" if crash.iteration is None else SmallCell(f" of iteration {crash.iteration}")
        return SeveralCells((phase, where))

    return (
        Column("time", lambda crash: MomentCell(crash.at, seconds=True), style="nowrap"),
        Column("fault", lambda crash: BadgeCell(crash.kind, "bad")),
        Column("during", during),
        Column("redone", _redone, number=True),
        Column("restart", lambda crash: DurationCell(crash.restart_seconds), number=True),
        Column("reason", lambda crash: crash.reason, style="text"),
    )


def attempt_columns(sft: bool, logs: Callable[[FaultRow], str]) -> Columns[FaultRow]:
    """Returns the columns of failed attempts.

    sft: the spec has supervised fine-tuning.
    logs: returns the address of an attempt's logs.
    """
    return (
        Column("ended", lambda row: MomentCell(row.ended_at, seconds=True), style="nowrap"),
        Column("class", lambda row: BadgeCell(row.failure_class, "bad")),
        Column("phase", lambda row: phase_name(row.phase, sft)),
        Column("iteration", lambda row: str(row.iteration), number=True),
        Column("attempt", lambda row: str(row.number), number=True),
        Column("duration", lambda row: DurationCell((row.ended_at - row.planned_at) / 1000), number=True),
        Column("reason", lambda row: row.reason or "", style="text"),
        Column("logs", lambda row: LinkCell("logs", logs(row), f"Logs of {row.phase}, iteration {row.iteration}")),
    )
