"""Judging a run's iterations one by one: a pure state machine over the metrics that its commits make durable.

What it remembers is the newest values of the metrics that its rules read, and of each rule the iteration of its last alarm.
The former are read back from the ledger by whoever goes on behind a commit, the latter stands in the commit's control state:
judged again from there, an iteration comes to the same alarms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from yatt_core.guards.findings import Alarm, Seen
from yatt_core.guards.rules import Rule, Series, rules_of
from yatt_core.spec.sections.guards import GuardsSpec

NEVER = -1
"""Before the first iteration: a rule without an alarm judges everything that it has seen."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What an iteration came to. since: the memory behind it, by rule. alarms: in the order of the rules."""

    since: Mapping[str, int]
    alarms: tuple[Alarm, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The newest values of the metrics that some rules read, up to an iteration."""

    depths: Mapping[str, int]
    series: Series = field(default_factory=dict)

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> History:
        """Nothing seen yet; as deep as the rules need it."""
        depths: dict[str, int] = {}
        for rule in rules:
            for metric in rule.metrics:
                depths[metric] = max(depths.get(metric, 0), rule.depth)
        return cls(depths, dict.fromkeys(depths, ()))

    def filled(self, values: Mapping[str, Sequence[tuple[int, float]]]) -> History:
        """With (iteration, value) of each metric, the oldest first, as the ledger has them."""
        return History(self.depths, {metric: tuple(Seen(*point) for point in values[metric]) for metric in self.series})

    def behind(self, iteration: int, values: Mapping[str, float]) -> History:
        """With one more iteration's values; those that no rule reads are left out."""
        grown = {
            metric: (*seen, Seen(iteration, values[metric]))[-self.depths[metric] :] if metric in values else seen
            for metric, seen in self.series.items()
        }
        return History(self.depths, grown)


class Judge:
    """The guards of a spec, as one function of what was seen."""

    def __init__(self, spec: GuardsSpec) -> None:
        self.rules = rules_of(spec)

    def judge(self, history: History, iteration: int, since: Mapping[str, int]) -> Judged:
        """The alarms of an iteration, which is the last one in the history.

        A rule speaks only where the iteration brought a value of a metric that it reads.
        """
        memory, alarms = dict(since), []
        for rule in self.rules:
            seen = [history.series[metric] for metric in rule.metrics]
            if not any(points and points[-1].iteration == iteration for points in seen):
                continue
            finding = rule.judge(history.series, memory.get(rule.name, NEVER))
            if finding is not None:
                memory[rule.name] = iteration
                alarms.append(Alarm(rule.name, rule.name, rule.action, finding))
        return Judged(memory, tuple(alarms))
