"""Running reward moments: the same bits however groups are divided and however often the run is resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flows.run.control_state import ControlState
from tests.algorithms.spreading import spread
from tests.spec.trees import spec
from yatt_core.algorithms.moments import RewardMoments, group_moments, merged, scaled

REWARDS = st.floats(-10, 10, allow_nan=False, width=32)


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.array(draw(st.lists(st.integers(1, 5), min_size=1, max_size=8)))
    return draw(arrays(np.float64, int(sizes.sum()), elements=REWARDS)), sizes


@given(st.lists(batches(), min_size=1, max_size=4), st.integers(1, 5))
def test_any_number_of_owners_gives_the_same_bits_iteration_after_iteration(
    history: list[tuple[np.ndarray, np.ndarray]], owners: int
) -> None:
    one = RewardMoments()
    several = RewardMoments()
    for rewards, sizes in history:
        one = merged(one, group_moments(rewards, sizes))
        several = merged(several, spread(rewards, sizes, owners))
    assert one == several
    rewards = np.concatenate([rewards for rewards, _ in history])
    assert one.count == len(rewards)
    np.testing.assert_allclose(one.mean, rewards.mean(), atol=1e-9)
    np.testing.assert_allclose(one.deviation, rewards.std(ddof=1) if len(rewards) > 1 else 0.0, atol=1e-7)


@given(batches(), batches())
def test_a_resumed_run_continues_with_the_same_bits(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> None:
    moments = merged(RewardMoments(), group_moments(*first))
    state = ControlState(1, ControlState.initial(spec().data).cursor, reward_moments=moments)
    restored = ControlState.from_json(json.loads(json.dumps(state.to_json()))).reward_moments
    assert restored == moments
    assert merged(restored, group_moments(*second)) == merged(moments, group_moments(*second))


def test_rewards_are_divided_by_the_deviation_of_earlier_ones() -> None:
    before = merged(RewardMoments(), group_moments(np.array([0.0, 2.0, 4.0, 6.0]), np.array([2, 2])))
    rewards = np.array([-1.0, 0.0, 3.0])
    found, metrics = scaled(rewards, before, "running", 1e-4)
    np.testing.assert_allclose(found, rewards / (np.std([0, 2, 4, 6], ddof=1) + 1e-4))
    assert metrics == {"reward_scale": before.scale(1e-4)}
    assert scaled(rewards, before, "none", 1e-4) == (rewards, {})


@pytest.mark.parametrize("history", [[], [1.0], [0.5, 0.5, 0.5]])
def test_without_spread_so_far_rewards_are_unchanged(history: list[float]) -> None:
    before = RewardMoments()
    if history:
        before = merged(before, group_moments(np.array(history), np.array([len(history)])))
    assert scaled(np.array([1.0]), before, "running", 1e-4)[0].tolist() == [1.0]


@given(
    st.floats(1e-100, 1e100) | st.floats(-1e100, -1e-100),
    st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=8), min_size=1, max_size=4),
)
def test_equal_rewards_have_no_spread_despite_rounding(reward: float, history: list[list[int]]) -> None:
    before = RewardMoments()
    for sizes in history:
        before = merged(before, group_moments(np.full(sum(sizes), reward), np.array(sizes)))
    assert before.scale(1e-4) == 1.0


@pytest.mark.parametrize("reward", [0.01, 0.05, 0.1, 0.2])
def test_rounding_of_the_mean_is_no_spread_but_a_small_difference_is(reward: float) -> None:
    sizes = np.arange(3, 16).repeat(4)
    equal = merged(RewardMoments(), group_moments(np.full(sizes.sum(), reward), sizes))
    assert equal.squares > 0.0 and equal.scale(1e-4) == 1.0
    apart = merged(equal, group_moments(np.array([reward, reward * (1 + 1e-9)]), np.array([2])))
    assert apart.scale(1e-4) == 1.0 / (apart.deviation + 1e-4) > 9_000
