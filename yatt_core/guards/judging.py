"""Checks a run's iterations one by one: a pure state machine over the metrics that its commits make durable.

It keeps the newest values of the metrics that its rules read, and the iteration of each rule's last alarm. On
resuming after a commit, the values are read back from the ledger and the alarms' iterations from the commit's
control state, so that judging an iteration again raises the same alarms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from yatt_core.guards.findings import Alarm, MetricValue
from yatt_core.guards.memory import CreepingMemoryRule
from yatt_core.guards.rules import PLAIN, Rule, Series, rules_of
from yatt_core.spec.sections.guards import GuardsSpec
from yatt_core.spec.sections.rollout import RolloutSpec

NEVER = -1
"""The last alarm's iteration for a rule without one, before all iterations: such a rule judges all values so far."""


@dataclass(frozen=True, slots=True)
class GuardResult:
    """The result of judging an iteration.

    since: iteration of the last alarm, by rule, after this iteration.
    alarms: the alarms of the iteration, in the order of the rules.
    """

    since: Mapping[str, int]
    alarms: tuple[Alarm, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The values of the metrics that a set of rules reads, up to an iteration; only as many as the rules need."""

    depths: Mapping[str, int]
    series: Series = field(default_factory=dict)

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> History:
        """Returns an empty history, as deep as the rules need."""
        depths: dict[str, int] = {}
        for rule in rules:
            for metric in rule.metrics:
                depths[metric] = max(depths.get(metric, 0), rule.depth)
        return cls(depths, dict.fromkeys(depths, ()))

    def filled(self, values: Mapping[str, Sequence[tuple[int, float]]]) -> History:
        """Returns the history with these (iteration, value) pairs of each metric, oldest first, as in the ledger."""
        return History(
            self.depths, {metric: tuple(MetricValue(*point) for point in values[metric]) for metric in self.series}
        )

    def extended(self, iteration: int, values: Mapping[str, float]) -> History:
        """Returns the history after one more iteration; values that no rule reads are dropped."""
        grown = {
            metric: (*seen, MetricValue(iteration, values[metric]))[-self.depths[metric] :]
            if metric in values
            else seen
            for metric, seen in self.series.items()
        }
        return History(self.depths, grown)


class GuardEvaluator:
    """The guards of a spec as a single function of the history.

    replayed: as in `rules_of`.
    processes: the names of the run's processes, whose memory is watched.
    """

    def __init__(
        self, spec: GuardsSpec, rollout: RolloutSpec = PLAIN, replayed: bool = False, processes: Sequence[str] = ()
    ) -> None:
        self.rules = rules_of(spec, rollout, replayed)
        if spec.creeping_memory is not None and processes:
            self.rules += (CreepingMemoryRule(spec.creeping_memory, tuple(processes)),)

    def judge(self, history: History, iteration: int, since: Mapping[str, int]) -> GuardResult:
        """Returns the alarms of an iteration, which must be the last one in the history.

        A rule is evaluated only if the iteration has a value for one of its metrics.
        """
        memory = dict(since)
        alarms = []
        for rule in self.rules:
            seen = [history.series[metric] for metric in rule.metrics]
            if not any(points and points[-1].iteration == iteration for points in seen):
                continue
            finding = rule.judge(history.series, memory.get(rule.name, NEVER))
            if finding is not None:
                memory[rule.name] = iteration
                alarms.append(Alarm(rule.name, rule.name, rule.action, finding))
        return GuardResult(memory, tuple(alarms))
