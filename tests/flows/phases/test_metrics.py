"""Metrics of an iteration, computed from its receipts."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from flows.phases.metrics import (
    add_sums,
    device_metrics,
    endpoint_metrics,
    evaluation_metrics,
    experience_metrics,
    judge_metrics,
    learning_metrics,
    timing_metrics,
)
from tests.ops.seeding import toy_spec
from yatt_core.evaluation.estimators import wilson_interval
from yatt_core.keys import WorkKey
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.seen import Usage
from yatt_core.protocols.receipts import JUDGE_TOKENS, EvaluateReceipt, PrepareReceipt, TaskResult, UpdateReceipt
from yatt_core.spec import override_spec, parse_spec
from yatt_core.spec.sections.metric_names import is_known

KEY = WorkKey("toy-1", 0, 1, "learn")
SUMS = {
    "prompts": 2.0, "samples": 4.0, "reward": 2.0, "reward_squared": 2.0, "reward/exact": 2.0, "correct": 1.0,
    "truncated": 1.0, "response_tokens": 10.0, "prompt_tokens": 20.0, "reward_errors": 0.0, "zero_spread_groups": 1.0,
}  # fmt: skip


def values(metrics: list) -> dict[str, float]:
    return {metric.key: metric.value for metric in metrics}


def test_sums_do_not_depend_on_the_order_of_shards() -> None:
    random.seed(0)
    parts = [{"reward": random.uniform(-1e9, 1e9)} for _ in range(64)]
    shuffled = random.sample(parts, len(parts))
    assert add_sums(parts) == add_sums(shuffled)


def test_means_and_fractions() -> None:
    metrics = values(experience_metrics(SUMS))
    assert metrics["reward/mean"] == metrics["reward/exact"] == 0.5
    assert metrics["reward/std"] == 0.5
    assert metrics["accuracy"] == 0.25
    assert metrics["truncated_fraction"] == 0.25
    assert metrics["length/response_mean"] == 2.5
    assert metrics["zero_spread_fraction"] == 0.5


def test_a_constant_reward_has_zero_spread_despite_rounding() -> None:
    sums = SUMS | {"reward": 4 * 0.1, "reward_squared": 4 * 0.1 * 0.1 - 1e-18}
    assert values(experience_metrics(sums))["reward/std"] == pytest.approx(0.0, abs=1e-8)
    assert not math.isnan(values(experience_metrics(sums))["reward/std"])


def test_what_prepare_and_learn_measured_is_of_class_result() -> None:
    prepared = PrepareReceipt(KEY, "folder", {}, {"kl": 0.5}, {})
    update = UpdateReceipt(KEY, 1, {"loss": 1.0}, {}, {"seconds": 3.0})
    metrics = learning_metrics(prepared, update)
    assert values(metrics) == {"kl": 0.5, "loss": 1.0}
    assert {metric.metric_class for metric in metrics} == {"result"}


def test_telemetry_without_numbers_counts_as_lost() -> None:
    found = [5, None, {JUDGE_TOKENS: "many"}, {JUDGE_TOKENS: math.nan}, {JUDGE_TOKENS: math.inf}, {JUDGE_TOKENS: 7.0}]
    shards = {f"shard-{number}": stages for number, stages in enumerate(found)}
    metrics = values(judge_metrics({"collect.w00.t0001": shards}, ()))
    assert metrics == {"judge/tokens": 7.0, "judge/prompt_tokens": 0.0, "judge/device_seconds": 0.0}


def test_what_it_took_to_ask_endpoints_is_added_up_over_shards_and_attempts() -> None:
    one = {
        "endpoints/judge/retries": 2.0,
        "endpoints/judge/latency/10": 1.0,
        "generate": 3.0,
        "scores": [{"part": "judge"}],
    }
    damaged = {"endpoints/judge/retries": "many", "endpoints/judge/latency/10": math.nan}
    telemetry: dict[str, Any] = {
        "collect.w00.t0001": {"shard-0": one, "shard-1": damaged, "shard-2": 5},
        "collect.w00.t0002": {"shard-0": one},
    }
    metrics = endpoint_metrics(telemetry)
    assert {metric.metric_class for metric in metrics} == {"timing"}
    assert values(metrics)["endpoints/judge/retries"] == 4.0
    assert set(values(metrics)) == {f"endpoints/judge/{name}" for name in ("retries", "latency_p50", "latency_p95")}


def answered(*rewards: float, samples: int = 1, source: int = 0) -> EvaluateReceipt:
    """Returns the receipt of tasks of which those with a reward of 1 were answered correctly."""
    tasks = tuple(TaskResult("p", source, samples, samples * (each == 1.0), each, each) for each in rewards)
    return EvaluateReceipt(KEY, tasks, tuple(range(len(tasks))), len(tasks))


def together(*parts: EvaluateReceipt) -> EvaluateReceipt:
    tasks = tuple(task for part in parts for task in part.tasks)
    return EvaluateReceipt(KEY, tasks, tuple(range(len(tasks))), len(tasks))


def test_an_evaluation_is_the_mean_over_its_tasks() -> None:
    found = values(evaluation_metrics(answered(1.0, 0.5, 0.0, 1.0), toy_spec()))
    low, high = wilson_interval(0.5, 4)
    bounds = {"evaluation/accuracy_low": low, "evaluation/accuracy_high": high}
    assert found == {"evaluation/accuracy": 0.5, "evaluation/reward": 0.625, **bounds}


def test_an_evaluation_of_samples_has_its_estimates_by_source() -> None:
    tree = toy_spec().model_dump(mode="json")
    tree["data"]["sources"] = [{**tree["data"]["sources"][0], "name": name} for name in ("easy", "hard")]
    tree["evaluation"]["sampling"] = {"samples": 4, "pass_at": [1, 2], "vote": {}}
    receipts = together(answered(1.0, 0.5, samples=4), answered(0.0, samples=4, source=1))
    found = values(evaluation_metrics(receipts, parse_spec(tree, "two sources")))
    expected = {"accuracy": (1 / 3, 1 / 2, 0), "pass_at_1": (1 / 3, 1 / 2, 0), "pass_at_2": (1 / 3, 1 / 2, 0)}
    for name, by_part in {**expected, "majority": (0.5, 0.75, 0)}.items():
        for part, value in zip(("", "easy/", "hard/"), by_part, strict=True):
            key = f"evaluation/{part}{name}"
            assert found[key] == pytest.approx(value)
            assert found[f"{key}_low"] <= found[key] <= found[f"{key}_high"]
    assert all(is_known(key) for key in found)


def test_the_order_of_tasks_does_not_change_the_reward() -> None:
    """Sums in order would differ in the last bit: (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3)."""
    rewards = (0.1, 0.2, 0.3, 0.7, 1e-9, 0.1)
    turned = [rewards[cut:] + rewards[:cut] for cut in range(6)]
    assert len({values(evaluation_metrics(answered(*each), toy_spec()))["evaluation/reward"] for each in turned}) == 1


def test_an_evaluation_says_how_many_tasks_its_figures_are_about() -> None:
    spec = override_spec(toy_spec(), ["exact=false", "evaluation.deadline.seconds=9"], "test")
    receipt = replace(answered(1.0, 0.0, 1.0), rows=(0, 2, 5), total=7)
    found = values(evaluation_metrics(receipt, spec))
    assert (found["evaluation/tasks"], found["evaluation/unanswered"]) == (3.0, 4.0)
    assert found["evaluation/accuracy"] == pytest.approx(2 / 3), "of those that are answered"
    assert all(is_known(key) for key in found)
    assert "evaluation/tasks" not in values(evaluation_metrics(receipt, toy_spec()))


def partly_scored(source: int = 0) -> tuple[TaskResult, ...]:
    """Returns the results of three tasks with four answers each, of which four, one and none have a score."""
    return (
        TaskResult("p", source, 4, 1, 0.25, 0.0),
        TaskResult("p", source, 1, 1, 1.0, 1.0, unscored=3),
        TaskResult("p", source, 0, 0, 0.0, None, unscored=4),
    )


def test_an_evaluation_is_over_answers_with_a_score_and_says_how_many_have_none() -> None:
    masking = override_spec(toy_spec(), ["rewards.parts.0.on_failure=mask", "evaluation.sampling={samples: 4}"], "test")
    receipt = EvaluateReceipt(KEY, partly_scored(), (0, 1, 2), 3)
    found = values(evaluation_metrics(receipt, masking))
    assert found["evaluation/unscored"] == 7.0 and is_known("evaluation/unscored")
    assert found["evaluation/accuracy"] == found["evaluation/reward"] == pytest.approx((0.25 + 1.0) / 2)
    nothing = EvaluateReceipt(KEY, partly_scored()[2:], (0,), 1)
    assert values(evaluation_metrics(nothing, masking)) == {"evaluation/unscored": 4.0}, "nothing is no accuracy of 0"
    assert "evaluation/unscored" not in values(evaluation_metrics(receipt, toy_spec())), "no part may leave out a score"


def test_estimates_of_a_task_that_lacks_scores_are_over_those_it_has() -> None:
    sampled = override_spec(toy_spec(), ["evaluation.sampling={samples: 4, pass_at: [2], vote: {}}"], "test")
    found = values(evaluation_metrics(EvaluateReceipt(KEY, partly_scored(), (0, 1, 2), 3), sampled))
    assert found["evaluation/pass_at_2"] == pytest.approx((0.5 + 1.0) / 2)
    assert found["evaluation/majority"] == 0.5


def test_a_source_without_any_score_has_no_figures() -> None:
    tree = toy_spec().model_dump(mode="json")
    tree["data"]["sources"] = [{**tree["data"]["sources"][0], "name": name} for name in ("easy", "hard")]
    tree["evaluation"]["sampling"] = {"samples": 4}
    tasks = (*partly_scored(), *partly_scored(source=1)[2:])
    found = values(evaluation_metrics(EvaluateReceipt(KEY, tasks, (0, 1, 2, 3), 4), parse_spec(tree, "two sources")))
    assert found["evaluation/easy/accuracy"] == found["evaluation/accuracy"] == pytest.approx((0.25 + 1.0) / 2)
    assert not [key for key in found if key.startswith("evaluation/hard/")]


def test_timings_are_of_class_timing() -> None:
    metrics = timing_metrics({"learn": 1.0}, 2.0, 10.0, 5.0, 100, {"object_store/spilled_bytes": 7.0})
    assert {metric.metric_class for metric in metrics} == {"timing"}
    found = values(metrics)
    assert (
        found["seconds/learn"] == 1.0 and found["tokens_per_second"] == 5.0 and found["driver_bytes_per_sample"] == 20
    )
    assert found["object_store/spilled_bytes"] == 7.0
    uncounted = values(timing_metrics({"learn": 1.0}, 2.0, None, 5.0, 100, {}))
    assert "tokens_per_second" not in uncounted and uncounted["seconds/iteration"] == 2.0


def test_the_work_of_a_device_is_given_by_role() -> None:
    usage = (
        Usage(0, ROLLOUT, steps=10, sequence_steps=40, decode_s=2.0),
        Usage(0, JUDGE, steps=5, sequence_steps=10, decode_s=0.5),
        Usage(1, JUDGE, prompt_tokens=100, prefill_s=3.0),
    )
    metrics = device_metrics(usage)
    assert {metric.metric_class for metric in metrics} == {"timing"}
    assert values(metrics) == {
        "devices/0/rollout_seconds": 2.0,
        "devices/0/judge_seconds": 0.5,
        "devices/0/tokens_per_second": 20.0,
        "devices/1/rollout_seconds": 0.0,
        "devices/1/judge_seconds": 3.0,
        "devices/1/tokens_per_second": 0.0,
    }
    assert device_metrics(()) == []


def test_the_mean_support_is_over_the_tokens_that_count() -> None:
    assert "support_size_mean" not in values(experience_metrics(SUMS))
    metrics = values(experience_metrics(SUMS | {"support_tokens": 21.0, "loss_tokens": 7.0}))
    assert metrics["support_size_mean"] == 3.0 and is_known("support_size_mean")


def test_judgements_without_a_score_are_counted_per_response_by_cause() -> None:
    assert not {"judge/unread", "judge/cut", "judge/unparsed"} & set(values(experience_metrics(SUMS)))
    unread = {"kind/cut": 2.0, "kind/unparsed": 1.0, "strict/cut": 3.0}
    causes = {f"unread_judgements/{name}": count for name, count in unread.items()}
    metrics = values(experience_metrics(SUMS | causes | {"unread_judgements": 6.0}))
    assert (metrics["judge/unread"], metrics["judge/cut"], metrics["judge/unparsed"]) == (1.5, 1.25, 0.25)
    assert {name: metrics[name] for name in causes} == causes
    assert "unscored_fraction" not in metrics, "a sample may lack a judgement and have a score"
    none = values(experience_metrics(SUMS | {"unread_judgements": 0.0}))
    assert (none["judge/unread"], none["judge/cut"], none["judge/unparsed"]) == (0.0, 0.0, 0.0)
