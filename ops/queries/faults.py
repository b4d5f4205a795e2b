"""What went wrong in a run, and what each cost.

Consumes the ledger; produces `Faults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from db.ledger import Ledger
from db.read.browse import FaultRow
from flows.reports.accounting import Crash
from ops.queries.accounts import accounts


@dataclass(frozen=True, slots=True)
class CrashView:
    """A driver that was lost or an attempt that failed, and its cost in seconds. at: milliseconds since 1970."""

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
    """Crashes with their costs, and failed attempts, some at a time; the newest first. next: as `before`, for more attempts.

    since: the crashes are those from then on, in milliseconds since 1970; none: all.
    """

    run: str
    since: int | None
    crashes: tuple[CrashView, ...]
    attempts: tuple[FaultRow, ...]
    next: int | None


def faults(ledger: Ledger, run: str, limit: int = 100, before: int | None = None) -> Faults:
    """The faults of a run. Raises `RunNotFound`."""
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
