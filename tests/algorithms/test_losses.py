"""KL estimators, entropy and the whole objective against plain numpy, token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.algorithms.corrections.truncate import TruncateCorrection
from yatt_core.algorithms.entropy.bonus import EntropyBonus
from yatt_core.algorithms.entropy.distribution import token_entropy
from yatt_core.algorithms.kl.estimators import k1, k3
from yatt_core.algorithms.losses.clip import ClipLoss
from yatt_core.engines.train.steps.objective import LossSums, TokenInputs, objective
from yatt_core.spec.sections.algorithm import AlgorithmSpec, KlSpec

LOG_PROBS = st.floats(-8, -1e-3)


@given(st.lists(st.tuples(LOG_PROBS, LOG_PROBS), min_size=1, max_size=5))
def test_kl_estimators(pairs: list[tuple[float, float]]) -> None:
    policy, reference = np.array(pairs).T
    ours = torch.tensor(policy)
    theirs = torch.tensor(reference)
    np.testing.assert_allclose(k1(ours, theirs), policy - reference)
    difference = reference - policy
    np.testing.assert_allclose(k3(ours, theirs), np.exp(difference) - difference - 1, atol=1e-9)
    assert bool((k3(ours, theirs) >= 0).all())


def test_kl_estimators_estimate_the_same_divergence() -> None:
    policy = np.array([0.5, 0.3, 0.2])
    reference = np.array([0.2, 0.5, 0.3])
    exact = float((policy * np.log(policy / reference)).sum())
    logs = torch.tensor(np.log(policy)), torch.tensor(np.log(reference))
    for estimator in (k1, k3):
        assert float((torch.tensor(policy) * estimator(*logs)).sum()) == pytest.approx(exact)


def test_entropy() -> None:
    uniform = torch.log(torch.full((2, 8), 0.125))
    np.testing.assert_allclose(token_entropy(uniform), [math.log(8)] * 2, rtol=1e-6)
    peaked = torch.log_softmax(torch.tensor([[1.0, 2.0, -1.0]]), -1)
    share = np.exp([1.0, 2.0, -1.0]) / np.exp([1.0, 2.0, -1.0]).sum()
    np.testing.assert_allclose(token_entropy(peaked), [-(share * np.log(share)).sum()], rtol=1e-6)


@pytest.mark.parametrize("with_old", [False, True])
@pytest.mark.parametrize("with_reference", [False, True])
def test_the_objective_matches_the_formula(with_old: bool, with_reference: bool) -> None:
    noise = np.random.default_rng(4)
    new, old, sampler, reference = noise.normal(-2, 0.4, (4, 30))
    advantages = noise.normal(0, 1, 30)
    weights = noise.uniform(0, 0.1, 30)
    entropies = noise.uniform(0, 2, 30)
    spec = AlgorithmSpec(
        loss=ClipLoss(clip_high=0.3),
        importance_correction=TruncateCorrection(cap=1.5),
        entropy=EntropyBonus(coefficient=0.01),
        kl=KlSpec(coefficient=0.2),
    )
    inputs = TokenInputs(
        *(torch.tensor(values) for values in (advantages, weights, np.full(30, 1 / 30), sampler)),
        old=torch.tensor(old) if with_old else None,
        reference=torch.tensor(reference) if with_reference else None,
    )
    loss, sums = objective(spec, torch.tensor(new), torch.tensor(entropies), inputs)
    total = 0.0
    policy_total = 0.0
    clipped = 0
    for t in range(30):
        before = old[t] if with_old else new[t]
        ratio = math.exp(new[t] - before)
        bounded = min(max(ratio, 0.8), 1.3)
        term = min(ratio * advantages[t], bounded * advantages[t])
        policy = -term * min(math.exp(before - sampler[t]), 1.5)
        clipped += bounded * advantages[t] < ratio * advantages[t]
        divergence = math.exp(reference[t] - new[t]) - (reference[t] - new[t]) - 1 if with_reference else 0.0
        policy_total += weights[t] * policy
        total += weights[t] * (policy + 0.2 * divergence) - 0.01 * entropies[t] / 30
    assert loss.item() == pytest.approx(total, rel=1e-9)
    assert sums.sums["loss"] == pytest.approx(total, rel=1e-9)
    assert sums.sums["policy_loss"] == pytest.approx(policy_total, rel=1e-9)
    assert sums.sums["tokens"] == 30
    assert sums.sums["clipped"] == clipped
    assert (clipped > 0) == with_old
    assert ("kl" in sums.sums) == with_reference
    gap = np.abs((old if with_old else new) - sampler)
    assert sums.sums["gap"] == pytest.approx(gap.sum(), rel=1e-9)
    assert sums.maxima["gap"] == pytest.approx(gap.max(), rel=1e-9)


def test_the_first_step_has_the_policy_gradient() -> None:
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    weights = torch.tensor([0.25, 0.75])
    inputs = TokenInputs(torch.tensor([1.5, -0.5]), weights, weights, torch.zeros(2), None, None)
    loss, _ = objective(AlgorithmSpec(), log_probs, torch.zeros(2), inputs)
    loss.backward()  # type: ignore[no-untyped-call]
    assert log_probs.grad is not None
    np.testing.assert_allclose(log_probs.grad, [-1.5 * 0.25, 0.5 * 0.75])


def test_sums_add_up_and_maxima_stay_the_largest() -> None:
    total = LossSums()
    total.merge(LossSums({"tokens": 2.0}, {"ratio": 1.0, "negative_ratio": -0.5}))
    total.merge(LossSums({"tokens": 3.0, "kl": 1.0}, {"ratio": 0.7, "negative_ratio": -0.9}))
    assert (total.sums, total.maxima) == ({"tokens": 5.0, "kl": 1.0}, {"ratio": 1.0, "negative_ratio": -0.5})


def test_a_micro_batch_without_counted_tokens_adds_nothing() -> None:
    nothing = torch.zeros(0)
    inputs = TokenInputs(nothing, nothing, nothing, nothing, None, None)
    loss, sums = objective(AlgorithmSpec(), torch.zeros(0, requires_grad=True), nothing, inputs)
    assert loss.item() == 0.0
    assert sums.sums["tokens"] == 0.0
    assert sums.maxima == {}


@pytest.mark.parametrize("by", [100.0, -100.0])
def test_a_log_ratio_far_out_of_bounds_leaves_a_finite_gradient_and_is_counted(by: float) -> None:
    """exp(100) is infinite in float32: without a bound, the second token's gradient is NaN although it is clipped."""
    spec = AlgorithmSpec.model_validate({"kl": {"coefficient": 0.1}})
    log_probs = torch.tensor([-1.0, -1.0], requires_grad=True)
    old = torch.tensor([-1.1, -1.0 - by])
    nothing = torch.zeros(2)
    half = torch.ones(2) / 2
    inputs = TokenInputs(torch.ones(2), half, half, nothing, old, torch.tensor([-1.0, -1.0 + by]))
    loss, sums = objective(spec, log_probs, nothing, inputs)
    loss.backward()  # type: ignore[no-untyped-call]
    assert log_probs.grad is not None and log_probs.grad.isfinite().all() and log_probs.grad[0] != 0
    assert (sums.sums["clamped"], math.isfinite(sums.sums["kl"])) == (1.0, True)
