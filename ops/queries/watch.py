"""A run as `yatt watch` shows it: where it is, what it is doing, how it learns, and what its guards found.

Consumes the ledger alone, so it works from any machine that reaches it; produces `Watched`, at a cost that does not grow
with the length of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from db.ledger import Ledger
from db.write.alarms import ALARM, AlarmRow
from flows.reports.measures import measures_of
from ops.queries.run import OpenPhase
from ops.queries.run_list import ListedRun, find_line
from ops.queries.series import SeriesView, newest_values, series
from ops.queries.spec import lag_of

SPEED = "tokens_per_second"
BUCKETS = 60
"""Maximum number of points of a curve."""
ALARMS = 3
SHOWN = ("kl", "entropy", "length/response_mean", "grad_norm", SPEED)
"""Metrics that are shown with their newest value."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A run in progress.

    under_way: the phases in progress.
    curves: those of the most telling metrics of the run's objective.
    metrics: newest values of these, of `SHOWN`, and of the machine's `system/` metrics.
    roles: one letter per rollout instance, its first role in the newest iteration; empty before the first decision.
    alarms: the newest ones, newest first.
    sft: the spec has supervised fine-tuning.
    begun: the current driver's session is recorded, so its services and actors have started.
    """

    run: ListedRun
    under_way: tuple[OpenPhase, ...]
    curves: tuple[SeriesView, ...]
    metrics: Mapping[str, float]
    placement: str
    roles: str
    alarms: tuple[AlarmRow, ...]
    sft: bool
    begun: bool


def watched(ledger: Ledger, run: str) -> Watched:
    """Returns a run, by its full id. Raises `RunNotFound`."""
    line = find_line(ledger, run)
    metrics = newest_values(ledger, run)
    told = measures_of(ledger, run).told
    decisions = ledger.browse.decisions(run, 1)
    newest = decisions[0].decision if decisions else {}
    return Watched(
        run=line,
        under_way=_under_way(ledger, line),
        curves=series(ledger, run, told, BUCKETS).series,
        metrics={key: value for key, value in metrics.items() if key in (*SHOWN, *told) or key.startswith("system/")},
        placement=str(newest.get("mode", "")),
        roles=str(newest.get("start", "")),
        alarms=tuple(
            AlarmRow(seq=link.seq, at=link.at, **link.body)
            for link in ledger.browse.events(run, ALARMS, kinds=(ALARM,))
        ),
        begun=any(session.term == line.term for session in ledger.overview.sessions(run, 1)),
        sft=ledger.runs.revision(run).spec.get("sft") is not None,
    )


def _under_way(ledger: Ledger, run: ListedRun) -> tuple[OpenPhase, ...]:
    """Returns the open attempts: at the next iteration, at one that is collected ahead, or at a recovery.

    A recovery belongs to the last committed iteration.
    """
    places = {max(0, run.iteration), *range(run.iteration + 1, run.iteration + 2 + lag_of(ledger, run.id))}
    rows = (row for place in sorted(places) for row in ledger.phases.attempts(run.id, run.branch, place))
    return tuple(
        OpenPhase(
            phase=row.phase,
            branch=row.branch,
            iteration=row.iteration,
            number=row.number,
            since_at=row.dispatched_at or row.planned_at,
        )
        for row in rows
        if row.ended_at is None
    )
