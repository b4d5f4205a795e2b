"""One run: its status, use of time, phases and newest metrics.

Consumes the ledger; produces `RunView`. The accounts of a long run cover only its newest attempts, from `since` on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.ledger import Ledger
from db.read.history import AttemptTimes, RunHistory
from db.read.overview import DriverSessionRow
from db.write.alarms import ALARM, AlarmRow
from db.write.annotations import Note
from db.write.waits import WaitRow
from flows.reports.accounting import Accounts
from flows.reports.advice import Advice, advise
from flows.reports.measures import measures_in
from flows.schedule.parameters import parameters_text
from flows.schedule.window_record import window_parameters
from ops.presentation.columns import (
    BadgeCell,
    Cell,
    Column,
    Columns,
    DurationCell,
    Medium,
    MomentCell,
    SeveralCells,
    SmallCell,
)
from ops.presentation.words import phase_name
from ops.queries.accounts import accounts
from ops.queries.forecast import RunForecast, run_forecast
from ops.queries.run_list import LOST, ListedRun, find_line
from ops.queries.series import newest_values

SESSIONS = 20
ALARMS = 20
"""Maximum numbers of newest sessions and alarms shown."""
THROUGHPUT = ("tokens_per_second", "seconds/iteration")


@dataclass(frozen=True, slots=True)
class PhaseUse:
    """A phase's totals over the accounted attempts.

    mean_seconds: mean duration of a finished attempt.
    failures: number of failures by class.
    """

    phase: str
    attempts: int
    done: int
    mean_seconds: float | None
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class OpenPhase:
    """A phase in progress.

    since_at: milliseconds since 1970.
    """

    phase: str
    branch: int
    iteration: int
    number: int
    since_at: int


@dataclass(frozen=True, slots=True)
class TimeView:
    """A run's use of time (`flows.reports.accounting`).

    since: start of the accounts, in milliseconds since 1970; None if they cover the whole run.
    buckets: seconds by bucket.
    ettr: effective training time as a fraction of all but idle time.
    """

    since: int | None
    wall_seconds: float
    buckets: Mapping[str, float]
    ettr: float | None
    crashes: int


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything that is shown about a run without reading its series.

    alarms, sessions: the newest ones, newest first.
    windows: given parameters of the sessions that were windows of a deployment, by Prefect flow run.
    note: what people wrote about the run; None if nothing.
    wait: what its driver waits for; None if for nothing.
    """

    run: ListedRun
    wait: WaitRow | None
    mlflow_run_id: str | None
    spec_revision: int
    spec_digest: str
    outbox_pending: int
    outbox_refused: int
    metrics: Mapping[str, float]
    forecast: RunForecast
    under_way: tuple[OpenPhase, ...]
    phases: tuple[PhaseUse, ...]
    time: TimeView
    advice: Advice
    alarms: tuple[AlarmRow, ...]
    sessions: tuple[DriverSessionRow, ...]
    windows: Mapping[str, Mapping[str, Any]]
    health: tuple[str, ...]
    throughput: tuple[str, ...]
    note: Note | None
    tags: tuple[str, ...]


def run_view(ledger: Ledger, run: str) -> RunView:
    """Returns one run, by its full id. Raises `RunNotFound`."""
    line = find_line(ledger, run)
    revision = ledger.runs.revision(run)
    accounted = accounts(ledger, run)
    history = accounted.history
    metrics = newest_values(ledger, run)
    return RunView(
        run=line,
        wait=None if line.driver == LOST else ledger.waits.of([run]).get(run),
        mlflow_run_id=ledger.runs.find(run).mlflow_run_id,
        spec_revision=revision.revision,
        spec_digest=revision.digest,
        outbox_pending=ledger.run_list.outbox_pending([run]).get(run, 0),
        outbox_refused=ledger.run_list.outbox_refused([run]).get(run, 0),
        metrics=metrics,
        forecast=run_forecast(ledger, line, revision.spec),
        under_way=tuple(_open(attempt) for attempt in history.attempts if attempt.ended_at is None),
        phases=phase_uses(history.attempts),
        time=time_view(history, accounted.accounts),
        advice=advise(history, accounted.accounts, revision.spec["checkpoints"]["every"]),
        alarms=tuple(
            AlarmRow(seq=link.seq, at=link.at, **link.body)
            for link in ledger.browse.events(run, ALARMS, kinds=(ALARM,))
        ),
        sessions=tuple(reversed(ledger.overview.sessions(run, SESSIONS))),
        windows=window_parameters(ledger, run),
        health=tuple(key for key in measures_in(revision.spec, metrics).health if key in metrics),
        throughput=tuple(key for key in THROUGHPUT if key in metrics),
        note=ledger.annotations.note(run),
        tags=ledger.annotations.tags([run]).get(run, ()),
    )


def time_view(history: RunHistory, made: Accounts) -> TimeView:
    """Returns a summary of the accounts."""
    return TimeView(
        since=history.since,
        wall_seconds=made.wall_seconds,
        buckets=made.buckets,
        ettr=made.ettr,
        crashes=len(made.crashes),
    )


def phase_uses(attempts: Sequence[AttemptTimes]) -> tuple[PhaseUse, ...]:
    """Returns the totals of each phase, in order of first appearance."""
    seconds: dict[str, list[float]] = defaultdict(list)
    failures: dict[str, Counter[str]] = defaultdict(Counter)
    counts = Counter(attempt.phase for attempt in attempts)
    for attempt in attempts:
        if attempt.state == "DONE" and attempt.ended_at is not None:
            seconds[attempt.phase].append((attempt.ended_at - attempt.planned_at) / 1000)
        elif attempt.failure_class is not None:
            failures[attempt.phase][attempt.failure_class] += 1
    return tuple(
        PhaseUse(
            phase=phase,
            attempts=count,
            done=len(seconds[phase]),
            mean_seconds=sum(seconds[phase]) / len(seconds[phase]) if seconds[phase] else None,
            failures=dict(failures[phase]),
        )
        for phase, count in counts.items()
    )


def _open(attempt: AttemptTimes) -> OpenPhase:
    since = attempt.dispatched_at or attempt.planned_at
    return OpenPhase(
        phase=attempt.phase, branch=attempt.branch, iteration=attempt.iteration, number=attempt.number, since_at=since
    )


def _failures(phase: PhaseUse) -> Cell:
    if not phase.failures:
        return "none"
    return SeveralCells(tuple(BadgeCell(f"{count} {name}", "bad") for name, count in phase.failures.items()), ", ")


def _alarm_iteration(alarm: AlarmRow) -> Cell:
    if not alarm.branch:
        return str(alarm.iteration)
    return SeveralCells((str(alarm.iteration), SmallCell(f"of branch {alarm.branch}")), " ")


def _length(session: DriverSessionRow) -> Cell:
    return DurationCell(None if session.ended_at is None else (session.ended_at - session.started_at) / 1000)


ALARMS_SHOWN: Columns[AlarmRow] = (
    Column("time", lambda alarm: MomentCell(alarm.at, seconds=True), style="nowrap"),
    Column("guard", lambda alarm: alarm.rule),
    Column("iteration", _alarm_iteration, number=True),
    Column("action", lambda alarm: BadgeCell(alarm.action, "warn" if alarm.action == "alert" else "bad")),
    Column("finding", lambda alarm: alarm.text, style="text"),
)


def phase_columns(sft: bool) -> Columns[PhaseUse]:
    """Returns the columns of a run's phases.

    sft: the spec has supervised fine-tuning.
    """
    return (
        Column("phase", lambda phase: phase_name(phase.phase, sft), heads=True),
        Column("attempts", lambda phase: phase.attempts, number=True),
        Column("done", lambda phase: phase.done, number=True),
        Column("mean", lambda phase: DurationCell(phase.mean_seconds), number=True),
        Column("failures", _failures),
    )


def session_columns(windows: Mapping[str, Mapping[str, Any]]) -> Columns[DriverSessionRow]:
    """Returns the columns of a run's driver sessions.

    windows: as of `RunView`.
    """
    return (
        Column("term", lambda session: str(session.term), number=True),
        Column("started", lambda session: MomentCell(session.started_at, seconds=True), style="nowrap"),
        Column("ended", lambda session: MomentCell(session.ended_at, seconds=True), style="nowrap", medium=Medium.PAGE),
        Column("length", _length, number=True),
        Column("outcome", lambda session: session.outcome or "in progress"),
        Column("Prefect flow run", lambda session: session.flow_run_name, style="break"),
        Column("window's parameters", lambda session: parameters_text(windows.get(session.flow_run_id, {}))),
    )
