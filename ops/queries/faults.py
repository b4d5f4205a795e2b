"""The faults of a run and their cost.

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
