"""Generalised advantage estimation and the critic's loss against the formulas, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.algorithms.advantages.estimation import explained_variance, generalised_advantages, whitened
from yatt_core.algorithms.value_loss import clipped_value_loss

NUMBER = st.floats(-5, 5)
RESPONSES = st.lists(st.lists(st.tuples(NUMBER, NUMBER), max_size=6), min_size=1, max_size=5)
SHARE = st.floats(0.0, 1.0)


def published(rewards: list[float], values: list[float], gamma: float, decay: float) -> list[float]:
    """Evaluates equation 16 of arXiv 1506.02438: sum over l of (gamma lambda)^l delta_{t+l}."""
    following = [*values[1:], 0.0][: len(values)]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [
        sum((gamma * decay) ** (later - t) * deltas[later] for later in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


@given(RESPONSES, SHARE, SHARE)
def test_advantages_are_the_published_sum(
    responses: list[list[tuple[float, float]]], gamma: float, decay: float
) -> None:
    flat = np.array([pair for response in responses for pair in response]).reshape(-1, 2)
    lengths = np.array([len(response) for response in responses])
    found = generalised_advantages(flat[:, 0], flat[:, 1], lengths, gamma, decay)
    wanted = [
        value
        for response in responses
        for value in published([r for r, _ in response], [v for _, v in response], gamma, decay)
    ]
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_lambda_zero_uses_the_critic_and_lambda_one_the_rewards() -> None:
    rewards = np.array([0.0, 0.0, 1.0])
    values = np.array([0.2, 0.5, 0.9])
    lengths = np.array([3])
    np.testing.assert_allclose(generalised_advantages(rewards, values, lengths, 1.0, 0.0), [0.3, 0.4, 0.1])
    np.testing.assert_allclose(generalised_advantages(rewards, values, lengths, 1.0, 1.0), 1.0 - values)
    np.testing.assert_allclose(generalised_advantages(rewards, values, lengths, 0.5, 1.0), [0.05, 0.0, 0.1])


def test_whitened_advantages_have_mean_zero_and_deviation_one() -> None:
    found = whitened(np.array([1.0, 2.0, 6.0]), 0.0)
    assert (found.mean(), found.std(ddof=1)) == pytest.approx((0.0, 1.0))
    assert whitened(np.array([3.0]), 1e-4).tolist() == [0.0]


def test_explained_variance() -> None:
    returns = np.array([0.0, 1.0, 2.0])
    assert explained_variance(returns, returns + 5.0) == pytest.approx(1.0), "a constant offset is explained"
    assert explained_variance(returns, np.zeros(3)) == pytest.approx(0.0)
    assert explained_variance(returns, -returns) == pytest.approx(-3.0)
    assert explained_variance(np.ones(3), returns) == 0.0


@given(NUMBER, NUMBER, NUMBER, st.floats(0.01, 1.0))
def test_clipped_value_loss(value: float, old: float, target: float, clip: float) -> None:
    tensors = [torch.tensor([number], dtype=torch.float64) for number in (value, old, target)]
    loss, clipped = clipped_value_loss(*tensors, clip)
    bounded = min(max(value, old - clip), old + clip)
    assert loss.item() == pytest.approx(max((value - target) ** 2, (bounded - target) ** 2) / 2)
    plain, none = clipped_value_loss(*tensors, None)
    assert (plain.item(), none.item()) == (pytest.approx((value - target) ** 2 / 2), False)
    assert not clipped.item() or loss.item() > plain.item()


def test_there_is_no_gradient_for_a_value_beyond_the_clip() -> None:
    values = torch.tensor([0.5, 0.1], requires_grad=True)
    loss, clipped = clipped_value_loss(values, torch.zeros(2), torch.ones(2), 0.2)
    loss.sum().backward()
    assert values.grad is not None
    assert clipped.tolist() == [True, False]
    assert (values.grad != 0).tolist() == [False, True]
