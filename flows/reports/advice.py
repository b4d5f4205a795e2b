"""Advises how often a run should take a checkpoint, from the cost of its checkpoints and the frequency of failures.

Consumes a run's history and accounts; produces `Advice`. The formula is in `yatt_core.checkpoints.interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from db.read.history import AttemptTimes, RunHistory
from flows.reports.accounting import Accounts
from flows.run.session_times import SessionSpan, session_spans
from yatt_core.checkpoints.interval import checkpoint_interval, overhead

ASSUMED_SECONDS_BETWEEN_FAILURES = 24 * 3600.0
"""Assumed if there was no failure; a run that has already lasted longer without a failure uses its duration instead."""
FIRM_FAILURES = 3
FIRM_CHECKPOINTS = 3


@dataclass(frozen=True, slots=True)
class Advice:
    """The advised checkpoint interval.

    every: iterations between checkpoints; None if there is not enough data.
    firm: whether there is enough data to rely on the advice.
    now: the run's current interval, in iterations.
    checkpoints, failures: numbers of observed checkpoints and failures.
    stall_seconds: C, the time for which a checkpoint stalls the trainer.
    replay_seconds: r, the time to replay one update.
    iteration_seconds: T, the productive time of one iteration.
    seconds_between_failures: M, the mean time between failures; an assumption if `failures` is 0.
    overhead, overhead_now: fraction of time spent on checkpoints and replay, at `every` and at the current interval.
    """

    every: int | None
    firm: bool
    now: int
    checkpoints: int
    failures: int
    stall_seconds: float | None
    replay_seconds: float | None
    iteration_seconds: float | None
    seconds_between_failures: float
    overhead: float | None = None
    overhead_now: float | None = None


def advise(history: RunHistory, accounts: Accounts, now: int) -> Advice:
    """Returns the advice for a run whose spec takes a checkpoint every `now` iterations."""
    sessions = session_spans(history)
    attempts = [attempt for session in sessions for attempt in session.attempts if attempt.state == "DONE"]
    stalls = [_seconds(attempt) for attempt in attempts if attempt.phase == "checkpoint"]
    failures = len(lost_tensors(sessions))
    asked = accounts.wall_seconds - accounts.buckets["idle"]
    iterations = len({(attempt.branch, attempt.iteration) for attempt in attempts if attempt.phase == "commit"})
    stall = median(stalls) if stalls else None
    replay = _replay_seconds(attempts)
    iteration = accounts.buckets["productive"] / iterations if iterations else None
    between = asked / failures if failures else max(asked, ASSUMED_SECONDS_BETWEEN_FAILURES)
    if not stall or not replay or not iteration:
        return Advice(
            every=None,
            firm=False,
            now=now,
            checkpoints=len(stalls),
            failures=failures,
            stall_seconds=stall,
            replay_seconds=replay,
            iteration_seconds=iteration,
            seconds_between_failures=between,
        )
    every = checkpoint_interval(stall, between, replay, iteration)
    return Advice(
        every=every,
        firm=failures >= FIRM_FAILURES and len(stalls) >= FIRM_CHECKPOINTS,
        now=now,
        checkpoints=len(stalls),
        failures=failures,
        stall_seconds=stall,
        replay_seconds=replay,
        iteration_seconds=iteration,
        seconds_between_failures=between,
        overhead=overhead(every=every, stall=stall, between_failures=between, replay=replay, iteration=iteration),
        overhead_now=overhead(every=now, stall=stall, between_failures=between, replay=replay, iteration=iteration),
    )


def lost_tensors(sessions: Sequence[SessionSpan]) -> list[AttemptTimes]:
    """Returns the recoveries that loaded a checkpoint because of a failure, not because of a planned start."""
    found = []
    planned = True
    for session in sessions:
        for attempt in session.attempts:
            if attempt.phase in ("start", "recover") and attempt.state == "DONE":
                if not planned and (attempt.receipt or {}).get("restored") is not None:
                    found.append(attempt)
                planned = False
            elif attempt.state == "FAILED":
                planned = False
        planned = not session.lost
    return found


def _replay_seconds(attempts: Sequence[AttemptTimes]) -> float | None:
    """Returns the seconds to replay one update: measured, else the time of `prepare` and `learn`; None if unknown."""
    receipts = [attempt.receipt or {} for attempt in attempts if attempt.phase == "recover"]
    replayed = sum(receipt.get("replayed", 0) for receipt in receipts)
    if replayed:
        seconds = sum(receipt["replay_seconds"] for receipt in receipts if receipt.get("replayed"))
        return float(seconds) / float(replayed)
    learning = [[_seconds(a) for a in attempts if a.phase == phase] for phase in ("prepare", "learn")]
    return float(sum(median(values) for values in learning if values)) if learning[1] else None


def _seconds(attempt: AttemptTimes) -> float:
    return ((attempt.ended_at or attempt.planned_at) - attempt.planned_at) / 1000
