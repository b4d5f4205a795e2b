"""Each loss of the policy against its published formula in float64, gradients included, in any micro-batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.algorithms.ragged import Reference, Step, algorithm, assert_parity, found, steps
from tests.matrix import examples
from yatt_core.algorithms.losses.registry import LossSpec

BOUND = 20.0


def ratios(step: Step, new: np.ndarray, i: int) -> np.ndarray:
    """exp(new - old), with the bound of 20 on its logarithm."""
    return np.exp(np.clip(new - step.old[i], -BOUND, BOUND))


def clip(step: Step) -> Reference:
    def losses(new: np.ndarray, _: np.ndarray, i: int) -> np.ndarray:
        ratio = ratios(step, new, i)
        advantage = step.advantages[i]
        return -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.28) * advantage)

    return losses


def dual_clip(step: Step) -> Reference:
    def losses(new: np.ndarray, _: np.ndarray, i: int) -> np.ndarray:
        found = []
        for ratio, a in zip(ratios(step, new, i), step.advantages[i], strict=True):
            smaller = min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
            found.append(-max(smaller, 3.0 * a) if a < 0 else -smaller)
        return np.array(found)

    return losses


def gspo(step: Step) -> Reference:
    def losses(new: np.ndarray, _: np.ndarray, i: int) -> np.ndarray:
        if not len(new):
            return new
        s = math.exp(np.clip(new - step.old[i], -BOUND, BOUND).sum() / len(new))
        a = step.advantages[i]
        return -np.minimum(s * a, np.clip(s, 1 - 3e-4, 1 + 4e-4) * a)

    return losses


def gmpo(step: Step) -> Reference:
    def losses(new: np.ndarray, _: np.ndarray, i: int) -> np.ndarray:
        product = 1.0
        a = step.advantages[i]
        for ratio, advantage in zip(ratios(step, new, i), a, strict=True):
            inside = min(max(ratio, math.exp(-0.4)), math.exp(0.4))
            product *= min(ratio, inside) if advantage > 0 else max(ratio, inside)
        return -(product ** (1 / max(len(new), 1))) * a

    return losses


def cispo(step: Step) -> Reference:
    def losses(new: np.ndarray, fixed: np.ndarray, i: int) -> np.ndarray:
        return -np.minimum(ratios(step, fixed, i), 5.0) * step.advantages[i] * new

    return losses


def dppo(step: Step, divergence: str, delta: float) -> Reference:
    def losses(new: np.ndarray, fixed: np.ndarray, i: int) -> np.ndarray:
        p = np.exp(fixed)
        q = np.exp(step.old[i])
        a = step.advantages[i]
        tv = np.abs(p - q)
        rest = np.log((1 - q) / np.maximum(1 - p, 1e-8))
        distance = tv if divergence == "tv" else q * np.log(q / p) + (1 - q) * rest
        outside = (((a > 0) & (p > q)) | ((a < 0) & (p < q))) & (distance > delta)
        return np.where(outside, 0.0, -ratios(step, new, i) * a)

    return losses


def sapo(step: Step) -> Reference:
    def losses(new: np.ndarray, _: np.ndarray, i: int) -> np.ndarray:
        a = step.advantages[i]
        tau = np.where(a > 0, 1.0, 1.05)
        with np.errstate(over="ignore"):
            return -4 / tau / (1 + np.exp(-tau * (ratios(step, new, i) - 1))) * a

    return losses


CASES: list[tuple[dict[str, Any], Any]] = [
    ({"kind": "clip", "clip_high": 0.28}, clip),
    ({"kind": "dual_clip"}, dual_clip),
    ({"kind": "gspo"}, gspo),
    ({"kind": "gmpo"}, gmpo),
    ({"kind": "cispo"}, cispo),
    ({"kind": "dppo", "delta": 0.01}, lambda step: dppo(step, "tv", 0.01)),
    ({"kind": "dppo", "divergence": "kl", "delta": 0.005}, lambda step: dppo(step, "kl", 0.005)),
    ({"kind": "sapo"}, sapo),
]
NAMES = ["clip", "dual_clip", "gspo", "gmpo", "cispo", "dppo-tv", "dppo-kl", "sapo"]


@pytest.mark.parametrize(("loss", "formula"), CASES, ids=NAMES)
@settings(max_examples=examples(25), deadline=None)
@given(step=steps())
def test_loss_and_gradient_are_the_formulas(loss: dict[str, Any], formula: Any, step: Step) -> None:
    assert_parity(algorithm(loss=loss), step, formula(step))


@pytest.mark.verify
@pytest.mark.parametrize(("loss", "formula"), CASES, ids=NAMES)
@settings(max_examples=examples(400), deadline=None)
@given(step=steps(token_advantages=True))
def test_loss_and_gradient_with_advantages_of_tokens(loss: dict[str, Any], formula: Any, step: Step) -> None:
    assert_parity(algorithm(loss=loss), step, formula(step))


def test_every_loss_of_the_registry_has_a_formula_here() -> None:
    members = LossSpec.__origin__.__args__  # type: ignore[attr-defined]
    assert {member.model_fields["kind"].default for member in members} - {"custom"} == {
        loss["kind"] for loss, _ in CASES
    }


@pytest.mark.parametrize(("loss", "formula"), CASES, ids=NAMES)
def test_the_first_step_has_the_policy_gradient(loss: dict[str, Any], formula: Any) -> None:
    """Without old log-probabilities every ratio is 1: the gradient is -w A, for whatever method."""
    rows = [np.array([-1.0, -2.0]), np.array([-0.5])]
    step = Step(rows, rows, rows, rows, np.array([0.2, 0.4]), [np.full(2, 1.5), np.full(1, -0.5)], [np.array([1, 0])])
    _, gradient, sums = found(algorithm(loss=loss), step, with_old=False)
    np.testing.assert_allclose(np.concatenate(gradient), [-0.3, -0.3, 0.2], rtol=1e-9)
    assert sums.sums["clipped"] == 0.0


@pytest.mark.parametrize(
    ("loss", "shift", "advantage", "clipped"),
    [
        ({"kind": "clip"}, 0.5, 1.0, True),
        ({"kind": "clip"}, 0.5, -1.0, False),
        ({"kind": "clip"}, -0.5, -1.0, True),
        ({"kind": "dual_clip"}, 1.0, -1.0, False),
        ({"kind": "dual_clip"}, 1.2, -1.0, True),
        ({"kind": "gspo"}, 1e-3, 1.0, True),
        ({"kind": "gmpo"}, 0.5, 1.0, True),
        ({"kind": "gmpo"}, 0.5, -1.0, False),
        ({"kind": "dppo"}, 0.5, 1.0, True),
        ({"kind": "dppo"}, -0.9, 1.0, False),
    ],
)
def test_clipped_tokens_have_no_gradient(loss: dict[str, Any], shift: float, advantage: float, clipped: bool) -> None:
    old = [np.array([-1.0])]
    step = Step([old[0] + shift], old, old, old, np.ones(1), [np.full(1, advantage)], [np.array([0])])
    _, gradient, sums = found(algorithm(loss=loss), step)
    assert (sums.sums["clipped"] == 1.0, float(gradient[0][0]) == 0.0) == (clipped, clipped)


def test_cispo_keeps_the_gradient_of_a_token_whose_weight_is_clipped() -> None:
    old = [np.array([-4.0])]
    step = Step([np.array([-0.5])], old, old, old, np.ones(1), [np.ones(1)], [np.array([0])])
    _, gradient, sums = found(algorithm(loss={"kind": "cispo"}), step)
    assert (float(gradient[0][0]), sums.sums["clipped"]) == (-5.0, 1.0)


@pytest.mark.parametrize("loss", [loss for loss, _ in CASES], ids=NAMES)
def test_a_micro_batch_without_tokens_adds_nothing_and_float32_stays_finite(loss: dict[str, Any]) -> None:
    spec = algorithm(
        loss=loss, importance_correction={"kind": "mask", "by": "sequence"}, off_policy_mask={"delta": 0.1}
    )
    empty = Step([], [], [], [], np.empty(0), [], [np.empty(0, dtype=np.int64)])
    total, _, sums = found(spec, empty)
    assert (total, sums.sums["tokens"], sums.maxima) == (0.0, 0.0, {})
    far = [np.array([-1e-3, -90.0])]
    old = [np.array([-90.0, -1e-3])]
    step = Step(far, old, old, old, np.ones(1), [np.ones(2)], [np.array([0])])
    _, gradient, _ = found(algorithm(loss=loss), step)
    assert np.isfinite(torch.tensor(gradient[0]).float().numpy()).all()
