"""The names of a run's metrics by class: those a guard may watch, and whether they depend on the spec or on timing.

docs/formats.md explains each of them.
"""

from __future__ import annotations

import difflib
import re

RESULT_METRICS = frozenset(
    {
        "reward/mean", "reward/std", "accuracy", "reward_scale", "reward_errors", "zero_spread_fraction", "truncated_fraction",
        "length/prompt_mean", "length/response_mean", "length/policy_mean", "turns", "tools/calls", "loss", "policy_loss",
        "grad_norm", "learning_rate", "entropy", "clip_fraction", "ratio_min", "ratio_max", "train_rollout_logprob_diff_mean",
        "train_rollout_logprob_diff_max", "kl", "value_loss", "value_clip_fraction", "value_grad_norm", "explained_variance",
        "distillation_kl", "importance_weight", "importance_sample_size", "importance_masked_fraction",
        "importance_capped_fraction",
        "off_policy_masked_fraction", "support_size_mean", "kl_coefficient", "entropy_coefficient", "frozen_fraction",
        "length/penalty_mean", "tokens", "sampling/waves", "sampling/drawn_groups",
        "sampling/invalid_groups", "sampling/cut_groups", "sampling/valid_fraction", "sampling/filled_fraction",
        "sampling/padded_groups", "sampling/dropped_groups", "sampling/wasted_tokens",
        "sampling/prompts_per_valid_group", "evaluation/accuracy", "evaluation/accuracy_low", "evaluation/accuracy_high",
        "evaluation/reward", "update/skipped",
        "update/empty_steps", "log_ratios_clamped",
        "sft/steps", "sft/probe_accuracy",
        "unscored_fraction", "evaluation/unscored", "evaluation/tasks", "evaluation/unanswered",
        "judge/unread", "judge/unparsed", "judge/cut", "staleness/mean", "staleness/max",
        "slices/rounds", "slices/in_flight", "slices/waiting", "slices/masked_groups",
        "tail/length_bias", "tail/thrown_away_tokens",
        "evaluation/loss", "evaluation/margin", "preference/accuracy", "preference/margin",
        "preference/chosen_reward", "preference/rejected_reward", "preference/chosen_log_prob", "preference/rejected_log_prob",
        "evaluation/chosen_reward", "evaluation/rejected_reward", "evaluation/chosen_log_prob", "evaluation/rejected_log_prob",
    }
)  # fmt: skip
"""Metrics that are functions of spec, data, seed and iteration."""
RESULT_FAMILIES = ("reward/", "tools/errors/", "curriculum/", "unscored/", "unread_judgements/")
EVALUATION = re.compile(r"evaluation/([^/]+/)?(reward|(accuracy|majority|pass_at_[0-9]+)(_low|_high)?)")
"""The metrics of an evaluation, over all tasks or of a source."""
TIMING_METRICS = frozenset(
    {
        "tools/seconds", "sft/seconds", "tokens_per_second", "driver_bytes_per_sample",
        "controllers/peak_bytes_in_flight", "sync/bytes", "sync/buckets", "sync/dirty_seconds",
        "object_store/spilled_bytes", "judge/tokens", "judge/prompt_tokens", "judge/device_seconds",
        "costs/cost", "costs/device_hours", "costs/energy_kwh", "costs/carbon_kg",
    }
)  # fmt: skip
"""Metrics that depend on timing, load and attempts."""
TIMING_FAMILIES = ("seconds/", "system/", "devices/", "endpoints/", "memory/")
LEAST_BUSY = "devices/least_utilization_percentage"
"""How busy the least busy device was."""


def is_timing(metric: str) -> bool:
    """Returns True for a metric of class timing."""
    return metric in TIMING_METRICS or metric.startswith(TIMING_FAMILIES)


def is_occasional(metric: str) -> bool:
    """Returns True for a metric that only iterations have in which something happened; in the others there was nothing of it."""
    return metric in ("update/skipped", "seconds/waiting") or metric.startswith(
        ("unscored/", "unread_judgements/", "endpoints/")
    )


def is_known(metric: str) -> bool:
    """Returns True if there are runs that have this metric."""
    known = metric in RESULT_METRICS or metric.startswith(RESULT_FAMILIES) or is_timing(metric)
    return known or EVALUATION.fullmatch(metric) is not None


def nearest_metric(name: str) -> str:
    """Returns a suggestion for an unknown metric name."""
    near = difflib.get_close_matches(name, sorted(RESULT_METRICS | TIMING_METRICS), n=1)
    return f"did you mean {near[0]!r}?" if near else "docs/formats.md lists the metrics"
