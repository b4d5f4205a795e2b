"""Turns receipts into the metrics of an iteration: pure functions, bit-identical for any order of arrival.

Metrics of class *result* are functions of (spec, data, seed, iteration); metrics of class *timing* are not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from db.write.metrics import RESULT, TIMING, Metric
from yatt_core.evaluation.summary import Summary, by_source, summarise
from yatt_core.experience.slicing import LearntLengths, Slicing, StartedGroup, slicing_metrics
from yatt_core.experience.table import PART_PREFIX, UNREAD, UNSCORED
from yatt_core.experience.telemetry import telemetry_figure
from yatt_core.judges.effort import PREFIX as ENDPOINTS
from yatt_core.judges.effort import effort_figures
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.seen import Usage
from yatt_core.protocols.judges import CUT, UNPARSED
from yatt_core.protocols.receipts import (
    HIDDEN_SECONDS,
    JUDGE_PROMPT_TOKENS,
    JUDGE_TOKENS,
    EvaluateReceipt,
    LearntFacts,
    PrepareReceipt,
    UpdateReceipt,
)
from yatt_core.spec import RunSpec

Telemetry = Mapping[str, Mapping[str, Any]]
"""Stages by file and shard, as `read_telemetry` returns them."""


def add_sums(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns exact sums of the shards' additive statistics, whatever the order of the shards."""
    keys = sorted({key for part in parts for key in part})
    return {key: math.fsum(part.get(key, 0.0) for part in parts) for key in keys}


def experience_metrics(sums: Mapping[str, float]) -> list[Metric]:
    """Returns reward by part, accuracy, lengths and truncation of an iteration's samples.

    Rewards and accuracy are those of the samples that have a score; without any there are none.
    """
    samples = sums["samples"]
    values = _score_metrics(sums)
    values |= {
        "truncated_fraction": sums["truncated"] / samples,
        "length/response_mean": sums["response_tokens"] / samples,
        "length/prompt_mean": sums["prompt_tokens"] / samples,
        "reward_errors": sums["reward_errors"],
    }
    if "support_tokens" in sums:
        values["support_size_mean"] = sums["support_tokens"] / max(sums["loss_tokens"], 1.0)
    if "turns" in sums:
        values |= {"turns": sums["turns"] / samples, "tools/calls": sums["tool_calls"]}
        values |= {"length/policy_mean": sums["loss_tokens"] / samples}
        values |= {
            key.replace("tool_", "tools/", 1): value for key, value in sums.items() if key.startswith("tool_errors/")
        }
    return [Metric(key, value, RESULT) for key, value in sorted(values.items())]


def _score_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Returns rewards and accuracy, and what has no score: samples by part and cause, and judgements."""
    samples = sums["samples"]
    scored = sums.get("scored", samples)  # shards of older versions do not say
    values: dict[str, float] = {}
    if scored:
        mean = sums["reward"] / scored
        variance = max(0.0, sums["reward_squared"] / scored - mean * mean)
        values = {
            "reward/mean": mean,
            "reward/std": math.sqrt(variance),
            "accuracy": sums["correct"] / scored,
            **{key: value / scored for key, value in sums.items() if key.startswith(PART_PREFIX)},
        }
    if compared := sums.get("compared_groups", sums["prompts"]):
        values["zero_spread_fraction"] = sums["zero_spread_groups"] / compared
    values |= {key: value for key, value in sums.items() if key.startswith((f"{UNSCORED}/", f"{UNREAD}/"))}
    if UNSCORED in sums:
        values["unscored_fraction"] = sums[UNSCORED] / samples
    if UNREAD in sums:
        values["judge/unread"] = sums[UNREAD] / samples
        for cause in (UNPARSED, CUT):
            found = [value for key, value in sums.items() if key.startswith(f"{UNREAD}/") and key.endswith(f"/{cause}")]
            values[f"judge/{cause}"] = math.fsum(found) / samples
    return values


def learning_metrics(prepared: PrepareReceipt, update: UpdateReceipt) -> list[Metric]:
    """Returns the trainer's metrics of an update, and `update/skipped` if it was skipped.

    They are loss, entropy, KL, clip fraction, ratios, gradient norm and log-probability differences.
    """
    skipped = {"update/skipped": 1.0} if "skipped" in update.fingerprint else {}
    values = {**prepared.metrics, **update.metrics, **skipped}
    return [Metric(key, value, RESULT) for key, value in sorted(values.items())]


def hidden_seconds(prepared: PrepareReceipt) -> dict[str, float]:
    """Returns the seconds of the trainer's work that streamed learning has hidden behind the engines', by metric name."""
    found = prepared.timing.get(HIDDEN_SECONDS)
    return {} if found is None else {"seconds/hidden": found}


def staleness_metrics(learned_from: int, tokens: Mapping[int, int]) -> list[Metric]:
    """Returns by how many versions the weights that sampled an update's tokens are older than those that it changes.

    learned_from: the version that the update starts from.
    tokens: the policy's tokens by the version that they were drawn under.
    """
    stale = math.fsum((learned_from - version) * count for version, count in tokens.items()) / sum(tokens.values())
    most = float(learned_from - min(tokens))
    return [Metric("staleness/max", most, RESULT), Metric("staleness/mean", stale, RESULT)]


def slice_metrics(learned_from: int, slicing: Slicing, learnt: Sequence[LearntFacts]) -> list[Metric]:
    """Returns rounds and groups in flight of an iteration with slices, and how stale what it learns from is.

    learned_from: the version that the update starts from.
    learnt: facts about the groups that are learnt from.
    """
    tokens: Counter[int] = Counter()
    for group in learnt:
        tokens.update(group.tokens)
    found = [Metric(key, value, RESULT) for key, value in slicing_metrics(slicing).items()]
    return [*found, *staleness_metrics(learned_from, tokens)]


def tail_metrics(learnt: LearntLengths, carried: Sequence[StartedGroup]) -> list[Metric]:
    """Returns the mean length of what was learnt from so far, over that of all that was begun; none before the first response.

    carried: the groups in flight.
    """
    return [Metric("tail/length_bias", learnt.bias(carried), RESULT)] if learnt.responses else []


def tool_seconds(telemetry: Telemetry) -> Metric:
    """Returns the seconds that controllers waited for tools, summed over the shards of all attempts."""
    return Metric("tools/seconds", _collected(telemetry, "tools"), TIMING)


def judge_metrics(telemetry: Telemetry, usage: Iterable[Usage]) -> list[Metric]:
    """Returns the cost of judging: tokens generated and read, over the shards of all attempts, and device seconds."""
    seconds = math.fsum(row.decode_s + row.prefill_s for row in usage if row.role == JUDGE)
    return [
        Metric("judge/tokens", _collected(telemetry, JUDGE_TOKENS), TIMING),
        Metric("judge/prompt_tokens", _collected(telemetry, JUDGE_PROMPT_TOKENS), TIMING),
        Metric("judge/device_seconds", seconds, TIMING),
    ]


def endpoint_metrics(telemetry: Telemetry) -> list[Metric]:
    """Returns what it took to ask endpoints, by reward part, over the shards of all attempts."""
    stages = [shard for shards in _of_collect(telemetry) for shard in shards.values() if isinstance(shard, dict)]
    sums: dict[str, float] = {}
    for shard in stages:
        for key in shard:
            if key.startswith(f"{ENDPOINTS}/"):
                sums[key] = sums.get(key, 0.0) + (telemetry_figure(shard, key) or 0.0)
    return [Metric(key, value, TIMING) for key, value in sorted(effort_figures(sums).items())]


def device_metrics(usage: Sequence[Usage]) -> list[Metric]:
    """Returns the work of each rollout instance: seconds by role, tokens per busy second.

    usage: the work of the iteration's `collect`.
    """
    values: dict[str, float] = {}
    judges = any(row.role == JUDGE for row in usage)
    roles = ((ROLLOUT, "rollout_seconds"), *(((JUDGE, "judge_seconds"),) if judges else ()))
    for instance in sorted({row.instance for row in usage}):
        own = [row for row in usage if row.instance == instance]
        for role, name in roles:
            spent = math.fsum(row.decode_s + row.prefill_s for row in own if row.role == role)
            values[f"devices/{instance}/{name}"] = spent
        tokens = sum(row.sequence_steps for row in own)
        seconds = math.fsum(row.decode_s for row in own)
        values[f"devices/{instance}/tokens_per_second"] = tokens / seconds if seconds > 0 else 0.0
    return [Metric(key, value, TIMING) for key, value in sorted(values.items())]


def _collected(telemetry: Telemetry, key: str) -> float:
    """Sums a figure of `collect` over the shards of all attempts; values that are not numbers are ignored."""
    collected = _of_collect(telemetry)
    return math.fsum(telemetry_figure(stages, key) or 0.0 for shards in collected for stages in shards.values())


def _of_collect(telemetry: Telemetry) -> list[Mapping[str, Any]]:
    """Returns the shards of all attempts at `collect`."""
    return [shards for name, shards in telemetry.items() if name.startswith("collect.")]


def evaluation_metrics(receipt: EvaluateReceipt, spec: RunSpec) -> list[Metric]:
    """Returns held-out reward, accuracy and the other estimates with their intervals, over all tasks and by source.

    With a deadline, some tasks may not be answered; no figure counts them.
    """
    tasks = list(receipt.tasks)
    whole = summarise(tasks, spec.evaluation)
    values = {} if whole is None else _summary_values("evaluation", whole)
    if spec.rollout.tools is not None or any(part.on_failure == "mask" for part in spec.rewards.functions):
        values["evaluation/unscored"] = float(sum(task.unscored for task in tasks))
    if spec.evaluation.deadline is not None:
        values |= {"evaluation/tasks": float(len(tasks)), "evaluation/unanswered": float(receipt.total - len(tasks))}
    for name, part in by_source(tasks, spec.data, spec.evaluation).items():
        values |= _summary_values(f"evaluation/{name}", part)
    return [Metric(key, value, RESULT) for key, value in sorted(values.items())]


def _summary_values(prefix: str, summary: Summary) -> dict[str, float]:
    values = {f"{prefix}/reward": summary.reward}
    for name, each in summary.estimates.items():
        values |= {
            f"{prefix}/{name}": each.value,
            f"{prefix}/{name}_low": each.low,
            f"{prefix}/{name}_high": each.high,
        }
    return values


def timing_metrics(
    seconds: Mapping[str, float],
    iteration_seconds: float,
    tokens: float | None,
    samples: float,
    driver_bytes: int,
    gauges: Mapping[str, float],
) -> list[Metric]:
    """Returns seconds by phase, the policy's tokens per second, driver traffic in bytes per sample, and the gauges.

    tokens: those that count in the loss; None for a workload that counts none.
    """
    values = {f"seconds/{phase}": value for phase, value in seconds.items()}
    values |= {
        "seconds/iteration": iteration_seconds,
        "driver_bytes_per_sample": driver_bytes / samples,
        **gauges,
    }
    if tokens is not None:
        values["tokens_per_second"] = tokens / iteration_seconds if iteration_seconds > 0 else 0.0
    return [Metric(key, value, TIMING) for key, value in sorted(values.items())]
