"""Watches the run's deadline by the clock during a session: after each iteration, and while one takes its time.

Consumes the durations of committed iterations from the ledger, and the clock. Produces alarms; the thread that renews
the lease asks too, because what delays a run (an outage, a slow phase) may let no iteration end before the deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from db.ledger import Ledger
from flows.run.clock import Clock
from yatt_core.guards.deadline import RECENT, forecast, judge_deadline
from yatt_core.guards.findings import Alarm
from yatt_core.spec import RunSpec

ITERATION_SECONDS = "seconds/iteration"


@dataclass(frozen=True, slots=True)
class _LastCommit:
    """What was known after the last commit.

    at: the clock's monotonic seconds.
    """

    branch: int
    iteration: int
    seconds: tuple[float, ...]
    at: float


class TargetDeadline:
    """The run's deadline during a session."""

    def __init__(self, ledger: Ledger, run: str, spec: RunSpec, clock: Clock) -> None:
        self._ledger = ledger
        self._run = run
        self._spec = spec
        self._clock = clock
        self._last: _LastCommit | None = None

    def alarms(self, branch: int, iteration: int) -> Iterator[Alarm]:
        """Yields the alarms after a commit."""
        if self._spec.guards.deadline.at is None:
            return
        points = self._ledger.metrics.newest(self._run, ITERATION_SECONDS, RECENT)
        seconds = tuple(value for _, value in points)
        self._last = _LastCommit(branch, iteration, seconds, self._clock.monotonic())
        for _, _, alarm in self.under_way():
            yield alarm

    def under_way(self) -> Iterator[tuple[int, int, Alarm]]:
        """Yields branch, last commit and alarm at this moment; reads no ledger."""
        last = self._last
        if last is None or last.iteration >= self._spec.iterations:
            return
        now = self._clock.time_ms()
        took = self._clock.monotonic() - last.at
        expected = forecast(
            seconds=last.seconds, iteration=last.iteration, target=self._spec.iterations, now=now, under_way=took
        )
        for alarm in judge_deadline(
            guard=self._spec.guards.deadline, run=self._run, iteration=last.iteration, expected=expected, now=now
        ):
            yield last.branch, last.iteration, alarm
