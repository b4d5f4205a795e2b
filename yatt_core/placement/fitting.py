"""Fits the engines' time constants to telemetry, by least squares over the instances' work and the seconds it took.

Consumes the usage of past iterations and the measured times of role changes; produces a setting with the fitted time
constants. Constants without telemetry get the values that are typical of a model with 7 billion parameters on one
accelerator. A change of role counts as free until the first one has been measured: a wrong guess would keep a policy
from ever making one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.seen import IterationTelemetry, Setting, Usage
from yatt_core.placement.workload import EngineConstants, SwitchCosts

USUAL = {"base_s": 0.008, "per_sequence_s": 2e-5, "per_context_token_s": 4e-8, "per_prompt_token_s": 4e-5}
LEAST_BASE_S = 1e-6


def usual_constants(max_concurrent: int) -> EngineConstants:
    """Returns typical constants, for an engine that does not report its own."""
    return EngineConstants(max_concurrent=max_concurrent, prefix_cache=True, **USUAL)


def fitted(setting: Setting, past: Sequence[IterationTelemetry]) -> Setting:
    """Returns the setting with time constants fitted to past iterations; limits and flags are unchanged."""
    usage = [row for iteration in past for row in iteration.usage]
    return replace(
        setting,
        rollout=_fit(setting.rollout, [row for row in usage if row.role == ROLLOUT], setting.speeds),
        judge=_fit(setting.judge, [row for row in usage if row.role == JUDGE], setting.speeds),
        switch=measured_switch(setting.switch, past),
    )


def measured_switch(before: SwitchCosts, past: Sequence[IterationTelemetry]) -> SwitchCosts:
    """Returns the costs of switching by the medians of the past iterations' role changes.

    before: the costs to keep where nothing was measured. The first measurement of one kind also stands for the other
        kind, since engines sleep and wake in both.
    """
    switches = [switch for iteration in past for switch in iteration.switches]
    within, at_start = ([each.seconds for each in switches if each.starting == kind] for kind in (False, True))
    role_s = median(within) if within else before.role_s or _median(at_start)
    repartition_s = median(at_start) if at_start else before.repartition_s or role_s
    return before.model_copy(update={"role_s": role_s, "repartition_s": repartition_s})


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0


def _fit(limits: EngineConstants, usage: Sequence[Usage], speeds: Sequence[float]) -> EngineConstants:
    found = dict(USUAL)
    decoding = [row for row in usage if row.steps]
    if decoding:
        # Rows are weighted by their time, because the constants have to predict seconds.
        work = np.array([[row.steps, row.sequence_steps, row.context_steps] for row in decoding], float)
        seconds = np.array([row.decode_s * speeds[row.instance] for row in decoding])
        found |= zip(("base_s", "per_sequence_s", "per_context_token_s"), _non_negative(work, seconds), strict=True)
    tokens = sum(row.prompt_tokens for row in usage)
    if tokens:
        found["per_prompt_token_s"] = sum(row.prefill_s * speeds[row.instance] for row in usage) / tokens
    found["base_s"] = max(found["base_s"], LEAST_BASE_S)
    return limits.model_copy(update=found)


def _non_negative(work: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Solves least squares with non-negative coefficients, by leaving out those that would be negative."""
    scale = np.maximum(work.max(axis=0), 1.0)
    kept = list(range(work.shape[1]))
    while True:
        solution, *_ = np.linalg.lstsq(work[:, kept] / scale[kept], seconds, rcond=None)
        if (solution >= 0).all() or len(kept) == 1:
            break
        kept.remove(kept[int(np.argmin(solution))])
    result = [0.0] * work.shape[1]
    for index, value in zip(kept, solution, strict=True):
        result[index] = float(max(value, 0.0) / scale[index])
    return result
