"""Coefficients that follow what is measured: from the control state into an update, and from its metrics back.

They travel with the reward moments: the driver reads them from the last commit, the task of `prepare` carries them, and its
receipt hands them on to `learn`, so that a replay uses the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from yatt_core.algorithms.kl.adaptive import KL
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.algorithm import AlgorithmSpec


def kl_coefficient(algorithm: AlgorithmSpec, state: Mapping[str, float]) -> float:
    """Returns the coefficient of the KL penalty in the next update; 0 without a penalty."""
    if algorithm.kl is None:
        return 0.0
    return algorithm.kl.coefficient if algorithm.kl.adaptive is None else state.get(KL, algorithm.kl.coefficient)


def entropy_bonus(algorithm: AlgorithmSpec, state: Mapping[str, float]) -> float:
    """Returns the coefficient of the entropy in the next update's objective."""
    return 0.0 if algorithm.entropy is None else algorithm.entropy.bonus(state)


def adapted(spec: RunSpec, state: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the coefficients after an update.

    metrics: of `prepare` and of the update; without some of them, as for a skipped update, the coefficients stay.
    """
    algorithm = spec.algorithm
    found = dict(state)
    if algorithm.kl is not None and algorithm.kl.adaptive is not None and "kl" in metrics:
        samples = spec.data.prompts_per_iteration * spec.rollout.samples_per_prompt
        found[KL] = algorithm.kl.adaptive.after(kl_coefficient(algorithm, state), metrics["kl"], samples)
    if algorithm.entropy is not None and "entropy" in metrics:
        found |= algorithm.entropy.after(state, metrics["entropy"])
    return found


def coefficient_metrics(algorithm: AlgorithmSpec, state: Mapping[str, float]) -> dict[str, float]:
    """Returns the coefficients that an update uses, if they are adaptive, as metrics."""
    found = {}
    if algorithm.kl is not None and algorithm.kl.adaptive is not None:
        found["kl_coefficient"] = kl_coefficient(algorithm, state)
    if algorithm.entropy is not None and algorithm.entropy.kind == "adaptive":
        found["entropy_coefficient"] = entropy_bonus(algorithm, state)
    return found
