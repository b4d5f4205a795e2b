"""The rules of a run's guards: pure functions from the newest values of a metric to a finding.

Consumes the spec's guards and the values seen so far, by metric. A rule judges only values after `since`, the
iteration of its last alarm, so that no two alarms report the same values; the values it compares them with may be
older.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from yatt_core.guards.findings import Alarm, Finding, MetricValue
from yatt_core.spec.sections.guards import (
    GuardsSpec,
    LogProbGapGuard,
    MetricGuard,
    NonFiniteGuard,
    RewardLengthGuard,
)
from yatt_core.spec.sections.metric_names import LEAST_BUSY
from yatt_core.spec.sections.rollout import RolloutSpec

REWARD = "reward/mean"
LENGTH = "length/response_mean"
ACCURACY = "accuracy"
SKIPPED = "update/skipped"
NON_FINITE = "non_finite"

Series = Mapping[str, Sequence[MetricValue]]
"""Values by metric, oldest first; empty for a metric without values so far."""


class Rule(Protocol):
    """A single guard.

    metrics: the metrics that it reads.
    depth: number of newest values that it needs of each metric.
    """

    @property
    def name(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def metrics(self) -> tuple[str, ...]: ...
    @property
    def depth(self) -> int: ...

    def judge(self, series: Series, since: int) -> Finding | None:
        """Returns a finding if a limit is violated, else None; judges only values after the iteration `since`."""
        ...


@dataclass(frozen=True, slots=True)
class MetricRule:
    """Compares the mean of a metric's newest values with fixed bounds and with the median of earlier values."""

    name: str
    metric: str
    guard: MetricGuard

    @property
    def action(self) -> str:
        """The action that an alarm triggers."""
        return self.guard.action

    @property
    def metrics(self) -> tuple[str, ...]:
        """The rule's only metric."""
        return (self.metric,)

    @property
    def depth(self) -> int:
        """Combined length of the window and the baseline."""
        return self.guard.window + self.guard.baseline

    def judge(self, series: Series, since: int) -> Finding | None:
        """Returns a finding for the first broken bound."""
        seen = series[self.metric]
        window = seen[-self.guard.window :]
        before = seen[: -self.guard.window][-self.guard.baseline :]
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
                    text += f" ({bound} {getattr(self.guard, bound):g} times the earlier median of {usual:.4g})"
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
        """Yields, for each bound that applies, its name, its threshold, and whether it is violated.

        `rise` and `fall` are skipped if the baseline is missing or not positive.
        """
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
    """Compares two adjacent windows: responses grow longer without a gain in reward or accuracy."""

    name: str
    guard: RewardLengthGuard

    @property
    def action(self) -> str:
        """The action that an alarm triggers."""
        return self.guard.action

    @property
    def metrics(self) -> tuple[str, ...]:
        """Reward, length and accuracy, which every iteration has."""
        return (REWARD, LENGTH, ACCURACY)

    @property
    def depth(self) -> int:
        """Combined length of both windows."""
        return 2 * self.guard.window

    def judge(self, series: Series, since: int) -> Finding | None:
        """Compares the two windows."""
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
        learned = mean(newest[ACCURACY]) - mean(before[ACCURACY])
        unrewarded = gained <= self.guard.gain
        if growth < self.guard.growth or (not unrewarded and learned >= 0.0):
            return None
        why = f"the reward changed by {gained:.4g}" if unrewarded else f"accuracy changed by {learned:.4g}"
        text = f"responses grew by a factor of {growth:.3g} from {span(before[LENGTH])} to {span(newest[LENGTH])}, and {why}"
        evidence = {
            "metric": LENGTH,
            "bound": "growth",
            "observed": growth,
            "threshold": self.guard.growth,
            "reward_change": gained,
            "accuracy_change": learned,
            "window": listed(newest[LENGTH]),
            "reward": listed(newest[REWARD]),
            "accuracy": listed(newest[ACCURACY]),
        }
        return Finding(text, newest[LENGTH][0].iteration, evidence)


@dataclass(frozen=True, slots=True)
class SkippedRule:
    """Counts the skipped updates among the newest; the update of an iteration without the metric was not skipped."""

    guard: NonFiniteGuard
    name: str = NON_FINITE

    @property
    def action(self) -> str:
        """The action that an alarm triggers."""
        return self.guard.action

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metric of skipped updates, and one that every iteration has, which is used to count iterations."""
        return (SKIPPED, REWARD)

    @property
    def depth(self) -> int:
        """Length of the window."""
        return self.guard.window

    def judge(self, series: Series, since: int) -> Finding | None:
        """Counts the skipped updates in the window, which need not be full."""
        window = [point.iteration for point in series[REWARD][-self.guard.window :] if point.iteration > since]
        skipped = [point for point in series[SKIPPED] if window and point.iteration >= window[0]]
        if len(skipped) <= self.guard.at_most:
            return None
        text = (
            f"{len(skipped)} of the last {len(window)} updates were not finite and were skipped, most recently in iteration "
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
    """Returns the alarm for an update that was not finite and was not skipped.

    answer: the value of `recovery.on_non_finite`, which is applied in any case.
    """
    finding = Finding(
        f"update {iteration} is not finite; recovery.on_non_finite is {answer}", iteration, {"reason": reason}
    )
    return Alarm(NON_FINITE, NON_FINITE, "alert", finding)


PLAIN = RolloutSpec()
"""Sampling from the model's own distribution."""
DEFAULT_GAP = LogProbGapGuard.model_fields["at_most"].default
RISE_OF_RESHAPED = 3.0
"""Multiple of the usual difference between sampler and trainer that raises an alarm if no absolute bound is known."""


def expected_difference(guard: LogProbGapGuard, rollout: RolloutSpec) -> LogProbGapGuard:
    """Returns the guard of the difference between sampler and trainer, adapted to how tokens are sampled.

    With top-p the sampler divides the probabilities that it keeps by their sum, which is at least `top_p`, so its
    log-probabilities may exceed the trainer's by up to -log(top_p) although both agree; the bound grows by as much. For
    `top_k`, `min_p`, `repetition_penalty` and `min_new_tokens` any such bound would be too wide to be useful: the kept
    sum is only known to be at least k / vocabulary, and a penalty acts on any logit. The default bound is then replaced
    by one relative to the run's own past, in which the effect of these settings is included. Another bound than the
    default stays: whoever set it knows the settings. (The ledger stores specs with all defaults, so a bound that equals
    the default counts as one.)
    """
    if guard.at_most is None:
        return guard
    if rollout.reshapes and guard.at_most == DEFAULT_GAP:
        return guard.model_copy(update={"at_most": None, "rise": guard.rise or RISE_OF_RESHAPED})
    return guard.model_copy(update={"at_most": guard.at_most - math.log(rollout.top_p)})


def rules_of(spec: GuardsSpec, rollout: RolloutSpec = PLAIN, replayed: bool = False) -> tuple[Rule, ...]:
    """Returns the enabled rules over metrics, in a fixed order.

    replayed: whether the trainer normalises over the sampler's support, so that sampling makes no difference between them.
    """
    gap = spec.train_rollout_logprob_diff
    if gap is not None and not replayed:
        gap = expected_difference(gap, rollout)
    metric_guards = {
        ("kl", "kl"): spec.kl,
        ("entropy", "entropy"): spec.entropy,
        ("train_rollout_logprob_diff", "train_rollout_logprob_diff_mean"): gap,
        ("gradient_norm", "grad_norm"): spec.gradient_norm,
        ("truncation", "truncated_fraction"): spec.truncation,
        ("unscored", "unscored_fraction"): spec.unscored,
        ("mostly_unscored", "unscored_fraction"): spec.mostly_unscored,
        ("unread_judgements", "judge/unread"): spec.unread_judgements,
        ("staleness", "staleness/mean"): spec.staleness,
        ("oldest_tokens", "staleness/max"): spec.oldest_tokens,
        ("sample_size", "importance_sample_size"): spec.sample_size,
        ("masked_weights", "importance_masked_fraction"): spec.masked_weights,
        ("capped_weights", "importance_capped_fraction"): spec.capped_weights,
        ("off_policy", "off_policy_masked_fraction"): spec.off_policy,
        ("length_bias", "tail/length_bias"): spec.length_bias,
        ("throughput", "tokens_per_second"): spec.throughput,
        ("idle_device", LEAST_BUSY): spec.idle_device,
    }
    rules: list[Rule] = [MetricRule(name, metric, guard) for (name, metric), guard in metric_guards.items() if guard]
    rules += [MetricRule(guard.name, guard.metric, guard) for guard in spec.custom]
    if spec.reward_against_length:
        rules.append(RewardLengthRule("reward_against_length", spec.reward_against_length))
    if spec.non_finite:
        rules.append(SkippedRule(spec.non_finite))
    return tuple(rules)


def mean(points: Sequence[MetricValue]) -> float:
    """Returns the mean of the values, which is bit-identical for every order of the points."""
    return math.fsum(point.value for point in points) / len(points)


def span(points: Sequence[MetricValue]) -> str:
    """Describes the iterations of a window."""
    first = points[0].iteration
    last = points[-1].iteration
    return f"iteration {first}" if first == last else f"iterations {first} to {last}"


def listed(points: Sequence[MetricValue]) -> list[list[float]]:
    """Returns the points as JSON stores them: [iteration, value]."""
    return [[point.iteration, point.value] for point in points]


def _side(bound: str) -> str:
    return "above" if bound in ("at_most", "rise") else "below"
