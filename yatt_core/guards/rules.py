"""The rules of a run's guards: pure functions from the newest values of a metric to what is wrong with them.

Consumes the spec's guards and, by metric, the values seen so far. A rule judges only values behind `since`, the iteration of
its last alarm, so that every alarm tells of others; what it compares them with may be older.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from yatt_core.guards.findings import Alarm, Finding, Seen
from yatt_core.spec.sections.guards import GuardsSpec, MetricGuard, NonFiniteGuard, RewardLengthGuard

REWARD, LENGTH, ACCURACY, SKIPPED = "reward/mean", "length/response_mean", "accuracy", "update/skipped"
NON_FINITE = "non_finite"

Series = Mapping[str, Sequence[Seen]]
"""By metric, oldest first; empty for one that was never seen."""


class Rule(Protocol):
    """One guard. metrics: what it reads. depth: how many of their newest values. window: iterations that it judges."""

    @property
    def name(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def metrics(self) -> tuple[str, ...]: ...
    @property
    def depth(self) -> int: ...

    def judge(self, series: Series, since: int) -> Finding | None:
        """What is wrong, if anything is. since: only what was seen behind this iteration is judged."""
        ...


@dataclass(frozen=True, slots=True)
class MetricRule:
    """The mean of a metric's newest values against fixed bounds, and against the median of those before them."""

    name: str
    metric: str
    guard: MetricGuard

    @property
    def action(self) -> str:
        """What an alarm leads to."""
        return self.guard.action

    @property
    def metrics(self) -> tuple[str, ...]:
        """The one metric."""
        return (self.metric,)

    @property
    def depth(self) -> int:
        """Window, and what it is compared with."""
        return self.guard.window + self.guard.baseline

    def judge(self, series: Series, since: int) -> Finding | None:
        """The first bound that is broken."""
        seen = series[self.metric]
        window, before = seen[-self.guard.window :], seen[: -self.guard.window][-self.guard.baseline :]
        if len(window) < self.guard.window or window[0].iteration <= since:
            return None
        observed = mean(window)
        usual = median(point.value for point in before) if len(before) >= self.guard.least_baseline else None
        for bound, threshold, broken in self._bounds(observed, usual):
            if broken:
                text = (
                    f"{self.metric} was {observed:.4g} on average over {span(window)}, {_side(bound)} {threshold:.4g}"
                )
                if bound in ("rise", "fall"):
                    text += f" ({bound} {getattr(self.guard, bound):g} of {usual:.4g}, the median before)"
                evidence = {
                    "metric": self.metric,
                    "bound": bound,
                    "observed": observed,
                    "threshold": threshold,
                    "baseline": usual,
                    "window": listed(window),
                }
                return Finding(text, window[0].iteration, evidence)
        return None

    def _bounds(self, observed: float, usual: float | None) -> Iterator[tuple[str, float, bool]]:
        """Name, threshold, and whether it is broken, of the bounds that can be judged. A share of zero or less says nothing."""
        guard = self.guard
        if guard.at_most is not None:
            yield "at_most", guard.at_most, observed > guard.at_most
        if guard.at_least is not None:
            yield "at_least", guard.at_least, observed < guard.at_least
        if usual is None or usual <= 0.0:
            return
        if guard.rise is not None:
            yield "rise", guard.rise * usual, observed > guard.rise * usual
        if guard.fall is not None:
            yield "fall", guard.fall * usual, observed < guard.fall * usual


@dataclass(frozen=True, slots=True)
class RewardLengthRule:
    """Two windows, one right behind the other: longer responses, without what they should be for."""

    name: str
    guard: RewardLengthGuard

    @property
    def action(self) -> str:
        """What an alarm leads to."""
        return self.guard.action

    @property
    def metrics(self) -> tuple[str, ...]:
        """Reward, length and accuracy, which every iteration has."""
        return (REWARD, LENGTH, ACCURACY)

    @property
    def depth(self) -> int:
        """Both windows."""
        return 2 * self.guard.window

    def judge(self, series: Series, since: int) -> Finding | None:
        """Compares the windows."""
        width = self.guard.window
        newest = {metric: series[metric][-width:] for metric in self.metrics}
        before = {metric: series[metric][:-width][-width:] for metric in self.metrics}
        if (
            any(len(part) < width for part in (*newest.values(), *before.values()))
            or newest[LENGTH][0].iteration <= since
        ):
            return None
        growth = mean(newest[LENGTH]) / mean(before[LENGTH]) if mean(before[LENGTH]) > 0.0 else 1.0
        gained = mean(newest[REWARD]) - mean(before[REWARD])
        learnt = mean(newest[ACCURACY]) - mean(before[ACCURACY])
        unrewarded = gained <= self.guard.gain
        if growth < self.guard.growth or (not unrewarded and learnt >= 0.0):
            return None
        why = f"the reward changed by {gained:.4g}" if unrewarded else f"accuracy changed by {learnt:.4g}"
        text = f"responses grew {growth:.3g} times from {span(before[LENGTH])} to {span(newest[LENGTH])}, and {why}"
        evidence = {
            "metric": LENGTH,
            "bound": "growth",
            "observed": growth,
            "threshold": self.guard.growth,
            "reward_change": gained,
            "accuracy_change": learnt,
            "window": listed(newest[LENGTH]),
            "reward": listed(newest[REWARD]),
            "accuracy": listed(newest[ACCURACY]),
        }
        return Finding(text, newest[LENGTH][0].iteration, evidence)


@dataclass(frozen=True, slots=True)
class SkippedRule:
    """How many of the newest updates were skipped; an iteration without the mark was not."""

    guard: NonFiniteGuard
    name: str = NON_FINITE

    @property
    def action(self) -> str:
        """What an alarm leads to."""
        return self.guard.action

    @property
    def metrics(self) -> tuple[str, ...]:
        """The mark, and what every iteration has, by which iterations are counted."""
        return (SKIPPED, REWARD)

    @property
    def depth(self) -> int:
        """The window."""
        return self.guard.window

    def judge(self, series: Series, since: int) -> Finding | None:
        """Counts the marks of the window, which need not be full."""
        window = [point.iteration for point in series[REWARD][-self.guard.window :] if point.iteration > since]
        skipped = [point for point in series[SKIPPED] if window and point.iteration >= window[0]]
        if len(skipped) <= self.guard.at_most:
            return None
        text = (
            f"{len(skipped)} of the newest {len(window)} updates were not finite and were skipped, the last in iteration "
            f"{skipped[-1].iteration}"
        )
        evidence = {
            "metric": SKIPPED,
            "bound": "at_most",
            "observed": len(skipped),
            "threshold": self.guard.at_most,
            "window": listed(skipped),
        }
        return Finding(text, skipped[0].iteration, evidence)


def non_finite_alarm(iteration: int, answer: str, reason: str) -> Alarm:
    """Of an update that was not finite and not skipped. answer: of `recovery.on_non_finite`, which is given in any case."""
    finding = Finding(f"update {iteration} is not finite; the answer is {answer}", iteration, {"reason": reason})
    return Alarm(NON_FINITE, NON_FINITE, "alert", finding)


def rules_of(spec: GuardsSpec) -> tuple[Rule, ...]:
    """The rules over metrics that are switched on, in a fixed order."""
    metric_guards = {
        ("kl", "kl"): spec.kl,
        ("entropy", "entropy"): spec.entropy,
        ("train_rollout_logprob_diff", "train_rollout_logprob_diff_mean"): spec.train_rollout_logprob_diff,
        ("gradient_norm", "grad_norm"): spec.gradient_norm,
        ("truncation", "truncated_fraction"): spec.truncation,
        ("throughput", "tokens_per_second"): spec.throughput,
    }
    rules: list[Rule] = [MetricRule(name, metric, guard) for (name, metric), guard in metric_guards.items() if guard]
    rules += [MetricRule(guard.name, guard.metric, guard) for guard in spec.custom]
    if spec.reward_against_length:
        rules.append(RewardLengthRule("reward_against_length", spec.reward_against_length))
    if spec.non_finite:
        rules.append(SkippedRule(spec.non_finite))
    return tuple(rules)


def mean(points: Sequence[Seen]) -> float:
    """Of their values; the same bits in whatever order they are summed."""
    return math.fsum(point.value for point in points) / len(points)


def span(points: Sequence[Seen]) -> str:
    """The iterations of a window in words."""
    first, last = points[0].iteration, points[-1].iteration
    return f"iteration {first}" if first == last else f"iterations {first} to {last}"


def listed(points: Sequence[Seen]) -> list[list[float]]:
    """As JSON keeps them: [iteration, value]."""
    return [[point.iteration, point.value] for point in points]


def _side(bound: str) -> str:
    return "above" if bound in ("at_most", "rise") else "below"
