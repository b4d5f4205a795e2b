"""Importance corrections and off-policy masks against their formulas, in any micro-batches, and their metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.algorithms.ragged import Reference, Step, algorithm, assert_parity, found, steps
from tests.matrix import examples
from yatt_core.algorithms.corrections.registry import CorrectionSpec
from yatt_core.engines.train.steps.learner import update_metrics

CORRECTIONS: list[dict[str, Any]] = [
    {"kind": kind, "by": by, **settings}
    for by in ("token", "sequence", "sequence_mean")
    for kind, settings in (("truncate", {"cap": 1.5}), ("mask", {"low": 0.5, "high": 2.0}))
]


def weights_of(correction: dict[str, Any], difference: np.ndarray) -> np.ndarray:
    """The factors of a response's tokens, from their log(old / sampler)."""
    if correction["by"] == "sequence":
        difference = np.full(len(difference), np.clip(difference.sum(), -20, 20))
    elif correction["by"] == "sequence_mean":
        difference = np.full(len(difference), np.clip(difference.sum() / max(len(difference), 1), -20, 20))
    weights = np.exp(difference)
    if correction["kind"] == "truncate":
        return np.minimum(weights, correction["cap"])
    return np.where((weights >= correction["low"]) & (weights <= correction["high"]), weights, 0.0)


def corrected(step: Step, correction: dict[str, Any], with_old: bool) -> Reference:
    def losses(new: np.ndarray, fixed: np.ndarray, i: int) -> np.ndarray:
        old = step.old[i] if with_old else fixed
        advantage = step.advantages[i]
        ratio = np.exp(np.clip(new - old, -20, 20))
        clipped = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        return clipped * weights_of(correction, old - step.sampler[i])

    return losses


@pytest.mark.parametrize("with_old", [True, False], ids=["several-steps", "one-step"])
@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda one: f"{one['kind']}-{one['by']}")
@settings(max_examples=examples(12), deadline=None)
@given(step=steps())
def test_loss_gradient_and_metrics_are_the_formulas(correction: dict[str, Any], with_old: bool, step: Step) -> None:
    spec = algorithm(importance_correction=correction)
    sums = assert_parity(spec, step, corrected(step, correction, with_old), with_old)
    base = step.old if with_old else step.new
    weights = [weights_of(correction, old - sampler) for old, sampler in zip(base, step.sampler, strict=True)]
    if correction["by"] != "token":
        weights = [row[:1] for row in weights]
    units = np.concatenate(weights)
    if len(units):
        metrics = update_metrics(run_of(spec), [sums], [1.0])
        assert metrics["importance_weight"] == pytest.approx(units.mean())
        size = units.sum() ** 2 / (len(units) * (units**2).sum()) if units.any() else 0.0
        assert metrics["importance_sample_size"] == pytest.approx(size)
        assert metrics["importance_masked_fraction"] == pytest.approx((units == 0.0).mean())
        capped = (units >= np.float32(correction["cap"])).mean() if correction["kind"] == "truncate" else 0.0
        assert metrics["importance_capped_fraction"] == pytest.approx(capped)


def run_of(spec: Any) -> Any:
    class Run:
        pass

    run: Any = Run()
    run.algorithm = spec
    return run


def test_every_correction_of_the_registry_is_compared() -> None:
    members = CorrectionSpec.__origin__.__args__  # type: ignore[attr-defined]
    assert {member.model_fields["kind"].default for member in members} == {one["kind"] for one in CORRECTIONS}


@settings(max_examples=examples(25), deadline=None)
@given(step=steps())
def test_off_policy_masking_is_the_formula(step: Step) -> None:
    def masked(fixed: np.ndarray, i: int) -> np.ndarray:
        if not len(fixed):
            return np.zeros(0, dtype=bool)
        return np.full(len(fixed), step.advantages[i][0] < 0 and (step.sampler[i] - fixed).mean() > 0.1)

    def losses(new: np.ndarray, fixed: np.ndarray, i: int) -> np.ndarray:
        ratio = np.exp(np.clip(new - step.old[i], -20, 20))
        advantage = step.advantages[i]
        clipped = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        return np.where(masked(fixed, i), 0.0, clipped)

    spec = algorithm(off_policy_mask={"delta": 0.1})
    sums = assert_parity(spec, step, losses)
    rows = [masked(row, i) for i, row in enumerate(step.new)]
    assert sums.sums["off_policy_masked"] == sum(int(row.sum()) for row in rows)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("unbiased", [False, True])
@settings(max_examples=examples(15), deadline=None)
@given(step=steps())
def test_the_kl_in_the_loss_is_the_formula(unbiased: bool, estimator: str, step: Step) -> None:
    def losses(new: np.ndarray, _: np.ndarray, i: int) -> np.ndarray:
        ratio = np.exp(np.clip(new - step.old[i], -20, 20))
        advantage = step.advantages[i]
        difference = new - step.reference[i]
        bounded = np.clip(difference, -20, 20)
        divergence = {"k1": difference, "k2": difference**2 / 2, "k3": np.exp(-bounded) + bounded - 1}[estimator]
        clipped = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        return clipped + 0.3 * divergence * (ratio if unbiased else 1.0)

    assert_parity(algorithm(kl={"coefficient": 0.3, "unbiased": unbiased, "estimator": estimator}), step, losses)


def test_the_unbiased_kl_has_the_gradient_of_the_divergence() -> None:
    """Over all tokens of a distribution, weighted by the sampling probabilities, its gradient is that of KL(p || q)."""
    logits = np.array([0.3, -0.2, 0.5])
    reference = np.log(np.array([0.2, 0.5, 0.3]))
    sampled = np.log(np.array([0.6, 0.3, 0.1]))

    def kl(values: np.ndarray) -> float:
        p = np.exp(values) / np.exp(values).sum()
        return float((p * (np.log(p) - reference)).sum())

    log_p = logits - np.log(np.exp(logits).sum())
    rows = [np.array([value]) for value in log_p]
    old = [np.array([value]) for value in sampled]
    ref = [np.array([value]) for value in reference]
    step = Step(rows, old, old, ref, np.exp(sampled), [np.zeros(1)] * 3, [np.arange(3)])
    total, by_log_p, _ = found(algorithm(kl={"coefficient": 1.0, "unbiased": True}), step)
    assert total == pytest.approx(kl(logits))
    jacobian = np.eye(3) - np.exp(log_p)[None, :]
    ours = np.concatenate(by_log_p) @ jacobian
    theirs = [(kl(logits + 1e-6 * one) - kl(logits - 1e-6 * one)) / 2e-6 for one in np.eye(3)]
    np.testing.assert_allclose(ours, theirs, atol=1e-8)
