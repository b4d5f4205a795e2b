"""What a sweep does next: a state machine over its trials and what was measured of them, without any I/O.

    a trial is proposed                     recorded before anything of it begins
    the best of a rung is promoted          recorded before it is driven on
    the runs that are under way are driven  each trial with all seeds, as forks of a common beginning
    a value is settled                      once all of a trial's runs have committed the rung's iteration
    the winner is chosen

Consumes `SweepFacts`; produces the next `Step`. Every step can be repeated: what is done already appears in the facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flows.sweeps.proposals import PastTrial
from flows.sweeps.schedule import HalvingRule, RungJob, Schedule, schedule_of
from flows.sweeps.space import Setting
from flows.sweeps.spec import SweepSpec


@dataclass(frozen=True, slots=True)
class Trial:
    """A proposed trial.

    refusal: why the runs' spec cannot have the setting; such a trial has failed before it begins.
    """

    setting: Setting
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class SweepFacts:
    """What a sweep has reached.

    trials: the proposed ones, in order.
    promoted: the jobs beyond the first rung that are recorded.
    values: the settled values, as they were measured; None for a trial that has failed.
    reached: for each trial that has runs, the newest iteration that all of its runs have committed.
    failed: trials of which a run cannot go on, for reasons of its own.
    concluded: whether the winner is recorded.
    """

    trials: tuple[Trial, ...] = ()
    promoted: frozenset[RungJob] = frozenset()
    values: Mapping[RungJob, float | None] = field(default_factory=dict)
    reached: Mapping[int, int] = field(default_factory=dict)
    failed: frozenset[int] = frozenset()
    concluded: bool = False


@dataclass(frozen=True, slots=True)
class Propose:
    """Record a new trial.

    history: the trials before.
    """

    trial: int
    history: tuple[PastTrial, ...]


@dataclass(frozen=True, slots=True)
class Promote:
    """Record that a trial goes on.

    rank: its place at the rung before, from 1.
    among: the number of trials that were settled there.
    """

    job: RungJob
    rank: int
    among: int


@dataclass(frozen=True, slots=True)
class Drive:
    """Drive the trials' runs to their rungs, the most urgent first; create those that do not exist."""

    jobs: tuple[RungJob, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Record the value of a job.

    failed: whether it has none, because the trial has failed.
    """

    job: RungJob
    failed: bool


@dataclass(frozen=True, slots=True)
class Conclude:
    """Record the winner; None if all trials have failed."""

    best: RungJob | None


Step = Propose | Promote | Drive | Settle | Conclude


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep's spec with the rule that follows from it and from the spec of its runs."""

    spec: SweepSpec
    rule: HalvingRule

    def schedule(self, facts: SweepFacts) -> Schedule:
        """Returns the decisions that follow from the settled values."""
        sign = self.spec.sign
        return schedule_of(
            self.rule, {job: None if value is None else sign * value for job, value in facts.values.items()}
        )

    def next_step(self, facts: SweepFacts) -> Step | None:
        """Returns what to do next; None if everything is done."""
        schedule = self.schedule(facts)
        for job in schedule.decided:
            if job.rung == 0 and job.trial >= len(facts.trials):
                return Propose(job.trial, self._history(facts, schedule))
            if job.rung > 0 and job not in facts.promoted:
                return self._promotion(job, schedule)
        if not schedule.open:
            return None if facts.concluded else Conclude(schedule.best())
        by_urgency = sorted(schedule.open, key=lambda job: (schedule.open[job], job))
        first = next(job for job in by_urgency if job not in facts.values)
        if self._has_failed(first, facts):
            return Settle(first, failed=True)
        if self._is_reached(first, facts):
            return Settle(first, failed=False)
        return Drive(tuple(job for job in by_urgency if not self._is_over(job, facts)))

    def _is_over(self, job: RungJob, facts: SweepFacts) -> bool:
        return job in facts.values or self._is_reached(job, facts) or self._has_failed(job, facts)

    def _is_reached(self, job: RungJob, facts: SweepFacts) -> bool:
        return facts.reached.get(job.trial, -1) >= self.rule.rungs[job.rung]

    def _has_failed(self, job: RungJob, facts: SweepFacts) -> bool:
        is_lost = job.trial in facts.failed and not self._is_reached(job, facts)
        return is_lost or facts.trials[job.trial].refusal is not None

    def _promotion(self, job: RungJob, schedule: Schedule) -> Promote:
        rung = job.rung - 1
        return Promote(job, schedule.ranked(rung).index(job.trial) + 1, schedule.count(rung))

    def _history(self, facts: SweepFacts, schedule: Schedule) -> tuple[PastTrial, ...]:
        """Returns what a proposal may learn from: what the logical clock has settled."""
        under_way = {job.trial for job in schedule.open}
        last = len(self.rule.rungs) - 1
        return tuple(
            PastTrial(
                trial.setting,
                {
                    self.rule.rungs[job.rung]: value
                    for job in schedule.settled
                    if job.trial == number and (value := facts.values[job]) is not None
                },
                ended=schedule.settled.get(RungJob(number, last)) is not None,
                failed=any(job.trial == number and value is None for job, value in schedule.settled.items()),
                under_way=number in under_way,
            )
            for number, trial in enumerate(facts.trials)
        )
