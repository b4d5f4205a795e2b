"""The deadline of a run by the clock, and the forecast of when it reaches its target: pure functions.

Consumes the durations of the newest committed iterations, as the metric `seconds/iteration` has them: an iteration's
last attempt from its first phase to its commit. Time in which the run stood still (paused, waiting for something that is
away, redoing what a crash cost) is in no duration, so it changes no rate; it passes all the same, so the forecast moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from yatt_core.guards.findings import Alarm, Finding
from yatt_core.spec.sections.guards import DeadlineGuard

DEADLINE = "deadline"
RECENT = 50
"""Number of newest iterations whose mean duration is the rate, so that evaluations and checkpoints among them count."""
ENOUGH = 5
"""Minimum number of iterations for a rate."""
OUTLIER = 10.0
"""A duration counts as at most this multiple of the median: a driver that was suspended for an hour is no rate."""


@dataclass(frozen=True, slots=True)
class TargetForecast:
    """When a run reaches its target if it goes on at its rate.

    target: the iteration that is reached then.
    pace: seconds per iteration.
    at: milliseconds since 1970.
    """

    target: int
    pace: float
    at: int

    def __str__(self) -> str:
        return f"at this rate iteration {self.target} on {day_and_time(self.at)}"


def pace_of(seconds: Sequence[float]) -> float | None:
    """Returns the mean duration of the newest iterations, in seconds; None if there are too few for a rate.

    seconds: durations of committed iterations, oldest first.
    """
    newest = seconds[-RECENT:]
    if len(newest) < ENOUGH:
        return None
    longest = OUTLIER * median(newest)
    return math.fsum(min(each, longest) for each in newest) / len(newest)


def forecast(
    seconds: Sequence[float], iteration: int, target: int, now: int, under_way: float = 0.0
) -> TargetForecast | None:
    """Returns when the run reaches its target; None if it has, or if there is no rate yet.

    seconds: durations of committed iterations, oldest first.
    iteration: the last commit.
    now: milliseconds since 1970.
    under_way: seconds that the next iteration has taken so far. At most one iteration's pace of it counts as work.
    """
    pace = pace_of(seconds)
    if pace is None or iteration >= target:
        return None
    left = (target - iteration) * pace - min(pace, max(0.0, under_way))
    return TargetForecast(target, pace, now + round(1000 * left))


def judge_deadline(
    guard: DeadlineGuard, run: str, iteration: int, expected: TargetForecast | None, now: int
) -> Iterator[Alarm]:
    """Yields an alert once the deadline will be missed at this rate, and the guard's alarm once it has passed.

    Each alarm keeps its name as long as the deadline is unchanged. A run that has reached its target raises none.

    iteration: the last commit.
    """
    if guard.at is None:
        return
    deadline = round(guard.at.timestamp() * 1000)
    name = f"{DEADLINE}.{guard.at.astimezone(UTC).isoformat(timespec='seconds')}"
    evidence: dict[str, float] = {"deadline": deadline, "now": now, "iteration": iteration}
    if now >= deadline:
        text = f"the deadline, {day_and_time(deadline)}, has passed after iteration {iteration}"
        if guard.action != "alert":
            text += f"; to continue, move it: yatt resume {run} --set guards.deadline.at=TIME"
        yield Alarm(DEADLINE, name, guard.action, Finding(text, iteration, evidence), lasting=True)
    elif expected is not None and expected.at > deadline:
        text = f"{expected}, the deadline is {day_and_time(deadline)}"
        evidence |= {"expected": expected.at, "pace": expected.pace}
        yield Alarm(DEADLINE, f"{name}.late", "alert", Finding(text, iteration, evidence), lasting=True)


def standing(expected: TargetForecast | None, deadline: datetime | None) -> str:
    """Returns the forecast and the deadline in one line for people; empty if there is neither."""
    parts = [] if expected is None else [str(expected)]
    if deadline is not None:
        parts.append(f"the deadline is {day_and_time(round(deadline.timestamp() * 1000))}")
    return ", ".join(parts)


def day_and_time(at: int) -> str:
    """Formats a time, in milliseconds since 1970, with its day of the week."""
    moment = datetime.fromtimestamp(at / 1000, UTC)
    return f"{moment:%A} {moment:%Y-%m-%d %H:%M} UTC"
