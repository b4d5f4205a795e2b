"""A sweep in the ledger: the audit chain of its first run, and the runs that are its members.

Consumes the ledger. Produces a sweep's spec, plan and facts, and adds links to the chain. A sweep is named by its first run,
which is the start of its trials unless the space has keys that forks cannot change.

    sweep            the spec of the sweep
    sweep_trial      a trial that was proposed: its number and setting, and why the spec refuses it if it does
    sweep_promotion  a trial that goes on to a rung, its rank at the rung before, and among how many
    sweep_value      a trial's value at a rung: that of each seed, and the mean; or why it has none
    sweep_winner     the best trial
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from db.core.engine import Fence
from db.write.alarms import ENDED
from db.write.runs import RunRow
from flows.members.record import FamilyRecord, create_record
from flows.members.tags import Family, tags_of
from flows.run.home import Home
from flows.sweeps.plan import Promote, Propose, SweepFacts, SweepPlan, Trial
from flows.sweeps.schedule import HalvingRule, RungJob
from flows.sweeps.space import Setting
from flows.sweeps.spec import SweepSpec, parse_sweep
from flows.sweeps.starts import SharedStart, Starts
from yatt_core.errors import ConfigurationError, FailureClass
from yatt_core.guards.budget import BUDGET
from yatt_core.guards.stalls import STALLED_PHASE
from yatt_core.spec import RunSpec, override_spec

SWEEP = Family("sweep", "sweep_member")
TRIAL = "sweep_trial"
PROMOTION = "sweep_promotion"
VALUE = "sweep_value"
WINNER = "sweep_winner"
EVALUATION = "evaluation/"
UNSCORED = "evaluation/unscored"
"""The metric of how many answers of an evaluation have no score."""
OF_THE_MACHINE = (BUDGET, STALLED_PHASE)
"""Guards that say nothing about a setting."""


def create_sweep(home: Home, sweep: SweepSpec, run: RunSpec, by: str) -> str:
    """Creates a sweep with its first run, which names it; returns the run's id.

    by: who starts it, for the audit chains of its runs.
    """
    first = override_spec(run, [f"seed={sweep.seeds_of(run)[0]}"], "the spec of the runs")
    return create_record(home, SWEEP, sweep, first, by=by)


def trial_name(trial: int, seed: int) -> str:
    """Returns the name of a trial's run among the members of its sweep."""
    return f"trial/{trial}/{seed}"


@dataclass(frozen=True)
class SweepRecord(FamilyRecord):
    """A sweep as the ledger has it."""

    family = SWEEP

    _tags: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @cached_property
    def spec(self) -> SweepSpec:
        """The sweep's spec."""
        return parse_sweep(self.begun_with, f"the spec of sweep {self.name}")

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of each trial."""
        return self.spec.seeds_of(self.run_spec)

    @cached_property
    def starts(self) -> Starts:
        """The starts of the trials."""
        return Starts.of(self.run_spec, self.spec.domains)

    @cached_property
    def plan(self) -> SweepPlan:
        """The sweep's plan."""
        spec = self.spec
        reduction = spec.asha.reduction if spec.asha else 2
        return SweepPlan(spec, HalvingRule(spec.rungs(self.run_spec), reduction, spec.workers, spec.count))

    def members(self) -> dict[str, RunRow]:
        """Returns the runs of the sweep by what they are: the starts, and each trial with each seed."""
        found: dict[str, RunRow] = {}
        for row in self.ledger.runs.named(self.run_spec.name):
            if row.id not in self._tags:  # they never change
                self._tags[row.id] = tags_of(self.ledger, row.id)
            member = SWEEP.member_of(self.name, self._tags[row.id])
            if member is not None:
                found.setdefault(member, row)
            elif row.id == self.name and not self.starts.keys:
                found[SharedStart(self.seeds[0], {}).name] = row
        return found

    def facts(self) -> SweepFacts:
        """Returns what the sweep has reached."""
        trials = self.trials()
        members = self.members()
        runs = {number: self.runs_of(number, members) for number in range(len(trials))}
        return SweepFacts(
            trials=trials,
            promoted=frozenset(RungJob(body["trial"], body["rung"]) for body in self.bodies(PROMOTION)),
            values={RungJob(body["trial"], body["rung"]): body["value"] for body in self.bodies(VALUE)},
            reached={
                number: min(row.iteration for row in rows.values())
                for number, rows in runs.items()
                if len(rows) == len(self.seeds)
            },
            failed=frozenset(
                number for number, rows in runs.items() if any(self.failure(row) is not None for row in rows.values())
            ),
            concluded=bool(self.bodies(WINNER)),
        )

    def trials(self) -> tuple[Trial, ...]:
        """Returns the proposed trials, in order."""
        return tuple(Trial(body["setting"], body["refusal"]) for body in self.bodies(TRIAL))

    def runs_of(self, trial: int, members: Mapping[str, RunRow]) -> dict[int, RunRow]:
        """Returns the runs of a trial by seed."""
        found = {seed: members.get(trial_name(trial, seed)) for seed in self.seeds}
        return {seed: row for seed, row in found.items() if row is not None}

    def failure(self, row: RunRow) -> str | None:
        """Returns why a run cannot go on for reasons of its own: a guard that ended it, or updates that are not finite.

        Anything else, such as a lost machine or a full disk, says nothing about its setting, and is None.
        """
        if row.state not in ("failed", *ENDED):
            return None
        alarms = [
            alarm.text
            for alarm in self.ledger.alarms.of(row.id)
            if alarm.action in ("pause", "stop")
            and alarm.rule not in OF_THE_MACHINE
            and alarm.iteration >= row.iteration
        ]
        charged = self.ledger.phases.charged(row.id, row.current_branch, row.iteration + 1, "learn")
        numeric = [row.state_reason] if row.state != "stopped" and FailureClass.NUMERIC.value in charged else []
        return next(iter([*alarms, *numeric]), None)

    def measured(self, run: str, iteration: int) -> float | None:
        """Returns the sweep's metric of a run at an iteration; None if no answer of the evaluation there has a score.

        Raises `ConfigurationError` if the run does not have the metric for any other reason.
        """
        metric = self.spec.metric
        (series,) = self.ledger.series.reduced(run=run, keys=[metric], buckets=1, first=iteration, last=iteration)
        if not series.buckets and metric.startswith(EVALUATION):
            (unscored,) = self.ledger.series.reduced(
                run=run, keys=[UNSCORED], buckets=1, first=iteration, last=iteration
            )
            if unscored.buckets and unscored.buckets[0].mean > 0:
                return None
        if not series.buckets:
            known = [each.key for each in self.ledger.series.keys(run) if each.metric_class == "result"]
            raise ConfigurationError(
                f"sweep {self.name}: run {run} has no metric {metric} at iteration {iteration}; "
                f"it has {', '.join(known) or 'none'}"
            )
        return series.buckets[0].mean

    # -- links ----------------------------------------------------------------------------------------------------------

    def add_trial(self, fence: Fence, step: Propose, setting: Setting) -> None:
        """Records a proposal. Raises `Fenced`."""
        body = {"trial": step.trial, "setting": dict(setting), "refusal": self.starts.refusal(setting)}
        self.ledger.events.append(self.name, TRIAL, body, fence)

    def add_promotion(self, fence: Fence, step: Promote) -> None:
        """Records that a trial goes on. Raises `Fenced`."""
        place = {"trial": step.job.trial, "rung": step.job.rung, "iteration": self.plan.rule.rungs[step.job.rung]}
        self.ledger.events.append(self.name, PROMOTION, {**place, "rank": step.rank, "among": step.among}, fence)

    def add_value(self, fence: Fence, job: RungJob, values: Mapping[int, float], failure: str | None = None) -> None:
        """Records the values of a trial's seeds at a rung, and their mean; or why it has none. Raises `Fenced`."""
        mean = math.fsum(values.values()) / len(values) if failure is None else None
        place = {"trial": job.trial, "rung": job.rung, "iteration": self.plan.rule.rungs[job.rung]}
        by_seed = {str(seed): value for seed, value in values.items()}
        body = {**place, "values": by_seed, "value": mean, "failure": failure}
        self.ledger.events.append(self.name, VALUE, body, fence)

    def add_winner(self, fence: Fence, best: RungJob | None) -> None:
        """Records the best trial; None if all have failed. Raises `Fenced`."""
        body: dict[str, Any] = {"trial": None}
        if best is not None:
            iteration = self.plan.rule.rungs[best.rung]
            setting = dict(self.trials()[best.trial].setting)
            body = {"trial": best.trial, "iteration": iteration, "value": self.facts().values[best], "setting": setting}
        self.ledger.events.append(self.name, WINNER, body, fence)
