"""Where a run stands, as facts for a decision: predicted end, time to its next safe point, what a stop would waste.

Consumes a run's own times, from its phases or from a simulation; produces the numbers of `Entry` and `Allocation`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flows.queueing.ettr import RunTimes, stop_cost
from flows.queueing.facts import NEVER, Allocation
from flows.queueing.forecasts import Outlook, forecast

RECENT = 20
"""Newest iterations whose mean is the prediction for the next ones."""
FEWEST = 3
"""Iterations without which nothing is predicted."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Where a run stands.

    times: None until enough iterations are committed.
    left: iterations that are left.
    every: iterations between checkpoints.
    since_commit: seconds since its newest commit, or since it got its devices.
    failures: unforeseen interruptions of the run in a second.
    stops: preemptions of the run in a second.
    wait: mean seconds of waiting after either.
    """

    times: RunTimes | None
    left: int
    every: int
    devices: int
    since_commit: float = 0.0
    failures: float = 0.0
    stops: float = 0.0
    wait: float = 0.0

    def outlook(self) -> Outlook | None:
        """Returns what a forecast is made from; None while too little is known."""
        if self.times is None:
            return None
        return Outlook(
            times=self.times,
            left=self.left,
            every=self.every,
            devices=self.devices,
            failures=self.failures,
            stops=self.stops,
            wait=self.wait,
        )

    def run_seconds(self) -> float:
        """Returns the predicted time from a start to the run's end; `NEVER` while too little is known."""
        outlook = self.outlook()
        return NEVER if outlook is None else outlook.times.restart + forecast(outlook, None).held_seconds


def times_of(iterations: Sequence[float], checkpoint: float, restart: float, replay: float) -> RunTimes | None:
    """Returns a run's times; None while it has committed too few iterations.

    iterations: seconds of each, oldest first.
    """
    if len(iterations) < FEWEST:
        return None
    return RunTimes(fmean(iterations[-RECENT:]), checkpoint, restart, replay)


def held(
    pool: str,
    devices: tuple[int, ...],
    started_at: float,
    level: int,
    progress: RunProgress,
    now: float,
    *,
    stopping: bool = False,
    backfilled: bool = False,
    within: float | None = None,
) -> Allocation:
    """Returns what a run holds, as a fact for a decision.

    within: seconds that a preempted run has.
    """
    outlook = progress.outlook()
    if outlook is None:
        return Allocation(
            pool=pool,
            devices=devices,
            started_at=started_at,
            level=level,
            stopping=stopping,
            ends_at=NEVER,
            free_at=now,
            lost_seconds=now - started_at,
            backfilled=backfilled,
        )
    seconds, wasted = stop_cost(outlook.times, progress.since_commit, within)
    ends_at = now + forecast(outlook, None).held_seconds - min(progress.since_commit, outlook.times.iteration)
    return Allocation(
        pool=pool,
        devices=devices,
        started_at=started_at,
        level=level,
        stopping=stopping,
        ends_at=max(now, ends_at),
        free_at=now + seconds,
        lost_seconds=wasted,
        backfilled=backfilled,
    )
