"""The effective training time ratio of a run on devices that fail: what it will be, and which checkpoint interval makes it best.

Consumes a run's own times and rates of interruptions; produces the ratio, an interval, and what an interruption costs. Pure.

A run repeats k iterations of t seconds and a checkpoint that stalls it for C seconds. Interruptions come at rate r for each
second that the run holds its devices (a Poisson process). Each costs L(k) = R + t/2 + k/2 * u seconds: the restart, half an
iteration, and the replay of the updates since the last checkpoint, which need no new experience (u seconds each). Of T held
seconds, r * T * L(k) are lost and the rest is a sequence of cycles, so that

    ETTR(k) = k * t / (k * t + C) * (1 - r * L(k)),    best near k = sqrt(2 * C / (r * t * u))

which is Young's rule (1974) if a replay takes as long as the iteration (u = t).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, sqrt

from flows.queueing.pools import DAY

PRIOR_DEVICE_DAYS = 30.0
"""Weight of a pool's expected rate of failures, beside what was seen."""
LOWEST = 0.01
"""Lower bound of the ratio, for rates at which the model says that nothing would ever end."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Times of a run in seconds, from its own phases.

    iteration: between two commits, without checkpoints.
    checkpoint: stall of a checkpoint.
    restart: from devices in hand to the first new work.
    replay: repeating one update from the experience on disk.
    """

    iteration: float
    checkpoint: float = 0.0
    restart: float = 0.0
    replay: float = 0.0


def failure_rate(expected_per_device_day: float, seen: int, device_seconds: float) -> float:
    """Returns failures of a device in a second: the mean of a Gamma prior's posterior after what was seen."""
    days = device_seconds / DAY
    return (expected_per_device_day * PRIOR_DEVICE_DAYS + seen) / (PRIOR_DEVICE_DAYS + days) / DAY


def interruption_seconds(times: RunTimes, every: int) -> float:
    """Returns what an unforeseen interruption costs, L(k)."""
    return times.restart + times.iteration / 2 + every / 2 * times.replay


def ettr(times: RunTimes, every: int, rate: float) -> float:
    """Returns the ratio of useful to held time.

    every: iterations between checkpoints.
    rate: interruptions of the run in a second.
    """
    work = every * times.iteration
    between = work / (work + times.checkpoint) if work else 1.0
    return max(LOWEST, between * (1.0 - rate * interruption_seconds(times, every)))


def best_interval(times: RunTimes, rate: float, most: int) -> int:
    """Returns the number of iterations between checkpoints with the best ratio, from 1 to `most`."""
    if times.checkpoint <= 0.0:
        return 1
    # With ETTR(k) = k t / (k t + C) * (most_useful - k lost), the derivative is zero at the root of a quadratic in k.
    most_useful = 1.0 - rate * interruption_seconds(times, 0)
    lost = rate * times.replay / 2
    if lost <= 0.0 or times.iteration <= 0.0:
        return most
    root = 1.0 + max(0.0, most_useful) * times.iteration / (lost * times.checkpoint)
    near = floor(min(times.checkpoint / times.iteration * (sqrt(root) - 1.0), float(most)))
    candidates = {max(1, min(most, near + step)) for step in (0, 1)}
    return min(candidates, key=lambda every: (-ettr(times, every, rate), every))


def stop_cost(times: RunTimes, into_iteration: float, within: float | None) -> tuple[float, float]:
    """Returns the seconds until a run that is asked to stop has ended, and the seconds of work that are wasted.

    into_iteration: seconds since the last commit.
    within: time in which it must end; None: it ends at its next commit, and wastes nothing but the restart.
    """
    rest = max(0.0, times.iteration - into_iteration)
    if within is None or rest + times.checkpoint <= within:
        return rest + times.checkpoint, times.restart + times.checkpoint
    return within, times.restart + times.checkpoint + min(into_iteration + within, times.iteration)
