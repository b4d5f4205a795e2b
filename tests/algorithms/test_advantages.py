"""Advantages against the formulas in plain numpy, independent of how groups are distributed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.algorithms.spreading import spread
from yatt_core.algorithms.advantages import Normalisation, advantages, batch_deviation, batch_std, group_mean, group_std
from yatt_core.algorithms.moments import group_moments

NORMALISATIONS: tuple[Normalisation, ...] = ("group_std", "group_mean", "batch_std")
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=8)


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.array(draw(SIZES))
    values = st.floats(-10, 10, allow_nan=False, width=32)
    return draw(arrays(np.float64, int(sizes.sum()), elements=values)), sizes


def by_group(rewards: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    return np.split(rewards, np.cumsum(sizes)[:-1])


@given(batches())
def test_group_std(batch: tuple[np.ndarray, np.ndarray]) -> None:
    expected = []
    for group in by_group(*batch):
        deviation = group.std(ddof=1) if len(group) > 1 else 0.0
        expected += [(reward - group.mean()) / (deviation + 1e-3) for reward in group]
    np.testing.assert_allclose(group_std(*batch, epsilon=1e-3), expected, atol=1e-9)


@given(batches())
def test_group_mean(batch: tuple[np.ndarray, np.ndarray]) -> None:
    expected = np.concatenate([group - group.mean() for group in by_group(*batch)])
    np.testing.assert_allclose(group_mean(*batch), expected, atol=1e-12)


@given(batches())
def test_batch_std(batch: tuple[np.ndarray, np.ndarray]) -> None:
    rewards, sizes = batch
    deviation = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
    expected = np.concatenate([group - group.mean() for group in by_group(*batch)]) / (deviation + 1e-3)
    np.testing.assert_allclose(batch_std(rewards, sizes, 1e-3), expected, atol=1e-9)


@given(batches(), st.integers(1, 4))
def test_partials_of_any_spread_give_the_same_bits(batch: tuple[np.ndarray, np.ndarray], owners: int) -> None:
    rewards, sizes = batch
    assert batch_deviation(spread(rewards, sizes, owners)) == batch_deviation(group_moments(rewards, sizes))


def test_equal_rewards_and_single_samples_have_no_advantage() -> None:
    rewards, sizes = np.array([0.1, 0.1, 0.1, 7.0]), np.array([3, 1])
    for normalise in NORMALISATIONS:
        assert not advantages(rewards, sizes, normalise, 1e-4).any(), (
            "exactly 0, although their mean is off by round-off"
        )
    assert batch_std(np.array([3.0]), np.array([1]), 1e-4).tolist() == [0.0]


@pytest.mark.parametrize("normalise", NORMALISATIONS)
def test_the_name_picks_the_formula(normalise: str) -> None:
    rewards, sizes = np.array([0.0, 1.0, 1.0, 5.0]), np.array([2, 2])
    expected = {
        "group_std": [-0.7071, 0.7071, -0.7071, 0.7071],
        "group_mean": [-0.5, 0.5, -2.0, 2.0],
        "batch_std": [-0.2255, 0.2255, -0.9020, 0.9020],
    }
    found = advantages(rewards, sizes, normalise, 1e-9)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected[normalise], atol=1e-4)
    assert found.dtype == np.float64
