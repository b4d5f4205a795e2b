"""Each guard rule: what trips it, what does not, and the evidence it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from yatt_core.guards.findings import Finding, MetricValue
from yatt_core.guards.rules import MetricRule, RewardLengthRule, Rule, SkippedRule, rules_of
from yatt_core.spec.sections.guards import CustomGuard, GuardsSpec, MetricGuard, NonFiniteGuard, RewardLengthGuard
from yatt_core.spec.sections.rollout import RolloutSpec

DEFAULTS = {rule.name: rule for rule in rules_of(GuardsSpec())}


def series(values: Sequence[float], first: int = 1) -> tuple[MetricValue, ...]:
    return tuple(MetricValue(first + place, value) for place, value in enumerate(values))


def found(rule: Rule, since: int = -1, **values: Sequence[float]) -> Finding | None:
    named = {key.replace("__", "/"): series(points) for key, points in values.items()}
    return rule.judge({metric: named.get(metric, ()) for metric in rule.metrics}, since)


@pytest.mark.parametrize(
    ("guard", "metric", "quiet", "tripping", "bound", "threshold"),
    [
        ("kl", "kl", [0.4] * 5, [0.1, 0.1, 0.9, 0.9, 0.9], "at_most", 0.5),
        (
            "train_rollout_logprob_diff",
            "train_rollout_logprob_diff_mean",
            [0.02] * 5,
            [0.05, 0.2, 0.2, 0.2, 0.2],
            "at_most",
            0.1,
        ),
        ("truncation", "truncated_fraction", [0.4] * 10, [0.6] * 10, "at_most", 0.5),
        ("entropy", "entropy", [2.0] * 50 + [1.0] * 10, [2.0] * 50 + [0.3] * 10, "fall", 0.4),
        ("gradient_norm", "grad_norm", [1.0] * 20 + [9.0] * 3, [1.0] * 20 + [1.0, 1.0, 40.0], "rise", 10.0),
        (
            "idle_device",
            "devices/least_utilization_percentage",
            [2.0] + [40.0] * 9,
            [40.0] * 5 + [1.0] * 10,
            "at_least",
            5.0,
        ),
        ("unscored", "unscored_fraction", [0.05] * 6, [0.0] * 3 + [0.0501] * 5, "at_most", 0.05),
        ("mostly_unscored", "unscored_fraction", [0.3] * 4, [0.0] * 2 + [0.301] * 2, "at_most", 0.3),
        ("unread_judgements", "judge/unread", [0.1] * 6, [0.0] * 3 + [0.101] * 5, "at_most", 0.1),
        ("staleness", "staleness/mean", [4.0] * 6, [1.0] * 3 + [4.01] * 5, "at_most", 4.0),
        ("oldest_tokens", "staleness/max", [16.0] * 6, [1.0] * 3 + [17.0] * 5, "at_most", 16.0),
        ("sample_size", "importance_sample_size", [0.3] * 6, [0.9] * 3 + [0.29] * 5, "at_least", 0.3),
        ("masked_weights", "importance_masked_fraction", [0.3] * 6, [0.0] * 3 + [0.31] * 5, "at_most", 0.3),
        ("capped_weights", "importance_capped_fraction", [0.3] * 6, [0.0] * 3 + [0.31] * 5, "at_most", 0.3),
        ("off_policy", "off_policy_masked_fraction", [0.3] * 6, [0.0] * 3 + [0.31] * 5, "at_most", 0.3),
        ("length_bias", "tail/length_bias", [0.6] * 5 + [0.9] * 19, [0.9] * 3 + [0.79] * 20, "at_least", 0.8),
        ("throughput", "tokens_per_second", [100.0] * 20 + [50.0] * 10, [100.0] * 20 + [20.0] * 10, "fall", 30.0),
    ],
)
def test_the_metrics_of_the_defaults(
    guard: str, metric: str, quiet: list[float], tripping: list[float], bound: str, threshold: float
) -> None:
    rule = DEFAULTS[guard]
    assert isinstance(rule, MetricRule) and rule.metric == metric
    assert found(rule, **{metric.replace("/", "__"): quiet}) is None
    alarm = found(rule, **{metric.replace("/", "__"): tripping})
    assert alarm is not None and alarm.evidence["bound"] == bound
    assert alarm.evidence["threshold"] == pytest.approx(threshold)
    window = alarm.evidence["window"]
    assert [value for _, value in window] == tripping[-rule.guard.window :]
    assert alarm.first == window[0][0]
    assert metric in alarm.text and f" {window[0][0]} to {window[-1][0]}" in alarm.text


def test_too_few_values_raise_no_alarm() -> None:
    rule = MetricRule("high", "kl", MetricGuard(at_most=0.5, window=3))
    assert found(rule, kl=[9.0, 9.0]) is None
    assert found(rule, kl=[9.0, 9.0, 9.0]) is not None
    sudden = MetricRule("sudden", "kl", MetricGuard(rise=2.0, window=1, baseline=4))
    assert found(sudden, kl=[1.0, 1.0, 1.0, 9.0]) is None
    assert found(sudden, kl=[1.0, 1.0, 1.0, 1.0, 9.0]) is not None


def declining(start: float, end: float, iterations: int) -> list[float]:
    """Returns values that fall by the same factor in each iteration."""
    return [start * (end / start) ** (k / (iterations - 1)) for k in range(iterations)]


@pytest.mark.parametrize("iterations", [100, 300, 500])
def test_an_entropy_that_collapses_slowly_raises_an_alarm(iterations: int) -> None:
    values = declining(2.0, 0.05, iterations)
    assert any(found(DEFAULTS["entropy"], entropy=values[: n + 1]) for n in range(iterations))


@pytest.mark.parametrize("iterations", [100, 300, 1000])
def test_a_normal_decline_of_entropy_raises_no_alarm(iterations: int) -> None:
    values = declining(2.0, 1.2, iterations)
    assert not any(found(DEFAULTS["entropy"], entropy=values[: n + 1]) for n in range(iterations))


def test_only_values_after_the_last_alarm_are_judged_against_all_earlier_ones() -> None:
    rule = MetricRule("sudden", "kl", MetricGuard(rise=2.0, window=2, baseline=2))
    values = [1.0, 1.0, 9.0, 9.0]
    assert found(rule, since=2, kl=values) is not None
    assert found(rule, since=3, kl=values) is None


def test_a_baseline_of_zero_raises_no_alarm() -> None:
    rule = MetricRule("sudden", "kl", MetricGuard(rise=2.0, window=1, baseline=2))
    assert found(rule, kl=[0.0, 0.0, 9.0]) is None


def test_the_bounds_of_one_guard() -> None:
    guard = CustomGuard(name="both", metric="entropy", at_least=1.0, at_most=2.0, window=1)
    rule = MetricRule("both", "entropy", guard)
    assert found(rule, entropy=[1.5]) is None
    for value, bound in ((0.5, "at_least"), (2.5, "at_most")):
        alarm = found(rule, entropy=[value])
        assert alarm is not None and alarm.evidence["bound"] == bound


LENGTH = RewardLengthRule("reward_against_length", RewardLengthGuard(window=2, growth=1.5, gain=0.1))


@pytest.mark.parametrize(
    ("lengths", "rewards", "accuracies", "why"),
    [
        ([10, 10, 14, 14], [0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5], None),
        ([10, 10, 20, 20], [0.5, 0.5, 0.9, 0.9], [0.5, 0.5, 0.6, 0.6], None),
        ([10, 10, 20, 20], [0.5, 0.5, 0.55, 0.55], [0.5, 0.5, 0.6, 0.6], " 0.05"),
        ([10, 10, 20, 20], [0.5, 0.5, 0.9, 0.9], [0.5, 0.5, 0.4, 0.4], " -0.1"),
        ([20, 20], [0.5, 0.1], [0.5, 0.1], None),
    ],
)
def test_longer_responses_have_to_be_worth_it(
    lengths: list[float], rewards: list[float], accuracies: list[float], why: str | None
) -> None:
    values: dict[str, Any] = {"length__response_mean": lengths, "reward__mean": rewards, "accuracy": accuracies}
    alarm = found(LENGTH, **values)
    assert (alarm is None) == (why is None)
    if alarm is not None and why is not None:
        assert alarm.text.endswith(why) and alarm.evidence["observed"] == pytest.approx(2.0)
        assert alarm.first == 3
    assert found(LENGTH, since=3, **values) is None


def test_skipped_updates_are_counted_in_a_window_that_need_not_be_full() -> None:
    rule = SkippedRule(NonFiniteGuard(window=3, at_most=1))
    rewards = series([0.0] * 6)
    marks = (MetricValue(2, 1.0), MetricValue(4, 1.0))
    found = rule.judge({"update/skipped": marks, "reward/mean": rewards[:4]}, -1)
    assert found is not None and found.evidence["window"] == [[2, 1.0], [4, 1.0]]
    assert rule.judge({"update/skipped": marks, "reward/mean": rewards[:5]}, -1) is None, "2 is outside the window"
    assert rule.judge({"update/skipped": marks, "reward/mean": rewards[:4]}, 2) is None, "2 already raised an alarm"
    once = SkippedRule(NonFiniteGuard())
    assert once.judge({"update/skipped": marks[:1], "reward/mean": rewards[:2]}, -1) is not None
    assert once.judge({"update/skipped": (), "reward/mean": rewards}, -1) is None


def test_nucleus_sampling_alone_raises_no_alarm() -> None:
    """With top_p 0.8, every log-probability of the sampler may exceed the trainer's by -log(0.8) = 0.22."""
    (rule,) = (
        rule for rule in rules_of(GuardsSpec(), RolloutSpec(top_p=0.8)) if rule.name == "train_rollout_logprob_diff"
    )
    assert found(rule, train_rollout_logprob_diff_mean=[0.3] * 10) is None
    assert found(rule, train_rollout_logprob_diff_mean=[0.35] * 10) is not None


@pytest.mark.parametrize(
    "shaped", [{"top_k": 50}, {"min_p": 0.1}, {"repetition_penalty": 1.2}, {"min_new_tokens": 3, "max_new_tokens": 9}]
)
def test_sampling_without_a_bound_on_the_difference_is_compared_with_its_own_past(shaped: dict[str, Any]) -> None:
    rules = rules_of(GuardsSpec(), RolloutSpec.model_validate(shaped))
    (rule,) = (rule for rule in rules if rule.name == "train_rollout_logprob_diff")
    assert found(rule, train_rollout_logprob_diff_mean=[0.9] * 40) is None
    assert found(rule, train_rollout_logprob_diff_mean=[0.9] * 35 + [2.6] * 5) is None
    assert found(rule, train_rollout_logprob_diff_mean=[0.9] * 35 + [2.8] * 5) is not None


def test_a_bound_that_the_spec_sets_applies_to_every_kind_of_sampling() -> None:
    guards = GuardsSpec.model_validate({"train_rollout_logprob_diff": {"at_most": 0.5}})
    stored = GuardsSpec.model_validate(guards.model_dump(mode="json"))
    rules = rules_of(stored, RolloutSpec(top_k=50))
    (rule,) = (rule for rule in rules if rule.name == "train_rollout_logprob_diff")
    assert found(rule, train_rollout_logprob_diff_mean=[0.4] * 40) is None
    assert found(rule, train_rollout_logprob_diff_mean=[0.6] * 40) is not None


@pytest.mark.parametrize("shaped", [{"top_k": 50, "top_p": 0.8}, {"top_k": 50, "min_p": 0.1}])
def test_a_replayed_support_leaves_the_bound_as_it_is(shaped: dict[str, Any]) -> None:
    rules = rules_of(GuardsSpec(), RolloutSpec.model_validate(shaped), replayed=True)
    (rule,) = (rule for rule in rules if rule.name == "train_rollout_logprob_diff")
    assert found(rule, train_rollout_logprob_diff_mean=[0.09] * 40) is None
    assert found(rule, train_rollout_logprob_diff_mean=[0.11] * 40) is not None
