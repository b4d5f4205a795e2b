"""Which trials of a sweep run how far: asynchronous successive halving (arXiv 1810.05934) on a clock that counts iterations.

Consumes the rule of a sweep and the values measured so far; produces the decisions that follow from them. Pure.

Logical workers take jobs: driving a new trial to the first rung, or one of the best at a rung to the next. A job takes as long as
it has iterations, so jobs end in an order that follows from the decisions alone. A value counts once the logical clock has
reached the end of its job, even if it was measured earlier. What is decided is therefore a function of the values, and neither
the speed of machines, nor the number of runs side by side, nor a kill changes it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class RungJob:
    """A trial that is driven to a rung; both count from 0."""

    trial: int
    rung: int


Values = Mapping[RungJob, float | None]
"""What was measured, multiplied so that the largest is the best; None for a trial that has failed."""


@dataclass(frozen=True, slots=True)
class HalvingRule:
    """How a sweep decides.

    rungs: iterations, in order; the last one is the runs' target.
    reduction: of how many trials at a rung one goes on.
    workers: logical workers.
    trials: number of trials.
    """

    rungs: tuple[int, ...]
    reduction: int
    workers: int
    trials: int

    def iterations(self, job: RungJob) -> int:
        """Returns the number of iterations of a job."""
        return self.rungs[job.rung] - (self.rungs[job.rung - 1] if job.rung else 0)


@dataclass(slots=True)
class Schedule:
    """The decisions that follow from some values.

    now: what the clock shows, in iterations of one worker.
    decided: all jobs that were decided, in order.
    open: the jobs under way, and the time at which each ends.
    settled: the values that count, in the order of their jobs' ends.
    ranks: for each rung, the settled trials with a value, best first; of equal ones, the earlier trial.
    """

    rule: HalvingRule
    now: int = 0
    decided: dict[RungJob, None] = field(default_factory=dict)
    open: dict[RungJob, int] = field(default_factory=dict)
    settled: dict[RungJob, float | None] = field(default_factory=dict)
    ranks: list[list[tuple[float, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = [[] for _ in self.rule.rungs]

    def ranked(self, rung: int) -> list[int]:
        """Returns the settled trials of a rung that have a value, best first."""
        return [trial for _, trial in self.ranks[rung]]

    def count(self, rung: int) -> int:
        """Returns the number of settled trials of a rung, failed ones included."""
        return sum(job.rung == rung for job in self.settled)

    def _failures(self, rung: int) -> int:
        return self.count(rung) - len(self.ranks[rung])

    def best(self) -> RungJob | None:
        """Returns the best job of the latest rung that has a value; None if there is no value at all."""
        rungs = (rung for rung in reversed(range(len(self.ranks))) if self.ranks[rung])
        return next((RungJob(self.ranks[rung][0][1], rung) for rung in rungs), None)

    def tied(self) -> list[int]:
        """Returns the trials that are as good as the best one, itself included, in their order."""
        best = self.best()
        if best is None:
            return []
        highest = self.ranks[best.rung][0][0]
        return [trial for value, trial in self.ranks[best.rung] if value == highest]

    def decide(self) -> bool:
        """Gives a free worker its job, if there is one; returns whether there is."""
        job = self._next_job()
        if job is not None:
            self.decided[job] = None
            self.open[job] = self.now + self.rule.iterations(job)
        return job is not None

    def _next_job(self) -> RungJob | None:
        """Returns the furthest promotion that is due, else a new trial; None if there is neither."""
        begun = sum(job.rung == 0 for job in self.decided)
        for rung in reversed(range(len(self.ranks) - 1)):
            can_come = begun < self.rule.trials or any(job.rung <= rung for job in self.open)
            # Once no other trial can come to a rung, at least one goes on; one that fails gives its place to the next.
            promoted = max(0 if can_come else 1, self.count(rung) // self.rule.reduction) + self._failures(rung + 1)
            for _, trial in self.ranks[rung][:promoted]:
                if RungJob(trial, rung + 1) not in self.decided:
                    return RungJob(trial, rung + 1)
        return RungJob(begun, 0) if begun < self.rule.trials else None

    def due(self) -> list[RungJob]:
        """Returns the jobs that end next, all at one time, by their trials."""
        earliest = min(self.open.values(), default=0)
        return sorted(job for job, end in self.open.items() if end == earliest)

    def settle(self, job: RungJob, value: float | None) -> None:
        """Lets a value count."""
        self.now = self.open.pop(job)
        self.settled[job] = value
        if value is not None:
            insort(self.ranks[job.rung], (-value, job.trial))


def schedule_of(rule: HalvingRule, values: Values) -> Schedule:
    """Returns the decisions that follow from the values, up to the first job whose value is missing."""
    schedule = Schedule(rule)
    while True:
        while len(schedule.open) < rule.workers and schedule.decide():
            pass
        due = schedule.due()
        if not due or any(job not in values for job in due):
            return schedule
        for job in due:
            schedule.settle(job, values[job])
