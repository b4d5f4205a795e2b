"""Each advantage against its published formula in plain numpy, group by group, and its edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.algorithms.spreading import spread
from tests.algorithms.test_gae import published
from tests.matrix import examples
from yatt_core.algorithms.advantages.base import Advantage, RewardBatch, batch_deviation
from yatt_core.algorithms.advantages.registry import AdvantageSpec
from yatt_core.algorithms.moments import group_moments

EPSILON = 1e-3


@st.composite
def batches(draw: st.DrawFn) -> RewardBatch:
    """Draws groups of 1 to 6 responses with 0 to 4 tokens, some groups with equal rewards, some without success."""
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = np.array(draw(st.lists(st.integers(1, 6), min_size=1, max_size=6)))
    count = int(sizes.sum())
    lengths = noise.integers(0, 5, count)
    kinds = draw(st.lists(st.sampled_from(["binary", "normal", "equal"]), min_size=len(sizes), max_size=len(sizes)))
    rewards = {
        "binary": lambda size: noise.choice([0.0, 1.0], size),
        "normal": lambda size: noise.normal(0, 3, size),
        "equal": lambda size: np.full(size, 0.1),
    }
    first = np.concatenate([rewards[kind](size) for kind, size in zip(kinds, sizes, strict=True)])
    second = noise.choice([0.0, 1.0], count)
    tokens = int(lengths.sum())
    return RewardBatch(
        rewards=0.7 * first + 0.3 * second,
        sizes=sizes,
        lengths=lengths,
        epsilon=EPSILON,
        penalties=noise.normal(0, 0.1, tokens) if draw(st.booleans()) else None,
        values=noise.normal(0, 1, tokens),
        parts={"first": (0.7, first), "second": (0.3, second)},
    )


def by_group(values: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.cumsum(sizes)[:-1])


def deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def group_std(batch: RewardBatch) -> np.ndarray:
    groups = by_group(batch.rewards, batch.sizes)
    return np.concatenate([(group - group.mean()) / (deviation(group) + EPSILON) for group in groups])


def group_mean(batch: RewardBatch) -> np.ndarray:
    return np.concatenate([group - group.mean() for group in by_group(batch.rewards, batch.sizes)])


def batch_std(batch: RewardBatch) -> np.ndarray:
    return group_mean(batch) / (deviation(batch.rewards) + EPSILON)


def leave_one_out(batch: RewardBatch) -> np.ndarray:
    found = []
    for group in by_group(batch.rewards, batch.sizes):
        for i, reward in enumerate(group):
            others = np.delete(group, i)
            found.append(reward - others.mean() if len(others) else 0.0)
    return np.array(found)


def max_rl(batch: RewardBatch) -> np.ndarray:
    groups = by_group(batch.rewards, batch.sizes)
    positive = [g.mean() > 1e-12 * np.abs(g).mean() for g in groups]
    return np.concatenate(
        [(g - g.mean()) / g.mean() if ok else np.zeros(len(g)) for g, ok in zip(groups, positive, strict=True)]
    )


def gdpo(batch: RewardBatch) -> np.ndarray:
    total = np.zeros(len(batch.rewards))
    for weight, rewards in batch.parts.values():
        groups = by_group(rewards, batch.sizes)
        total += weight * np.concatenate([(g - g.mean()) / (deviation(g) + EPSILON) for g in groups])
    return (total - total.mean()) / (deviation(total) + EPSILON) if len(total) > 1 else np.zeros(1)


def token_rows(batch: RewardBatch) -> list[np.ndarray]:
    """The penalties of each response's tokens."""
    penalties = np.zeros(int(batch.lengths.sum())) if batch.penalties is None else batch.penalties
    return by_group(penalties, batch.lengths)


def over_all(tokens: np.ndarray) -> np.ndarray:
    return (tokens - tokens.mean()) / (deviation(tokens) + EPSILON) if len(tokens) > 1 else np.zeros(len(tokens))


def reinforce_plus_plus(batch: RewardBatch, baseline: bool = False) -> np.ndarray:
    rewards = group_mean(batch) if baseline else batch.rewards
    rows = [
        [reward - row[t:].sum() for t in range(len(row))]
        for reward, row in zip(rewards, token_rows(batch), strict=True)
    ]
    return over_all(np.array([value for row in rows for value in row]))


def group_tokens(batch: RewardBatch) -> np.ndarray:
    rows = [reward - row for reward, row in zip(batch.rewards, token_rows(batch), strict=True)]
    found = [np.empty(0)]
    place = 0
    for size in batch.sizes:
        tokens = np.concatenate(rows[place : place + size])
        if len(tokens):
            found.append((tokens - tokens.mean()) / (deviation(tokens) + EPSILON))
        place += size
    return np.concatenate(found)


def gae(batch: RewardBatch) -> np.ndarray:
    assert batch.values is not None
    found: list[float] = []
    values = by_group(batch.values, batch.lengths)
    for reward, row, own in zip(batch.rewards, token_rows(batch), values, strict=True):
        rewards = -row
        if len(row):
            rewards[-1] += reward
        found += published(rewards.tolist(), own.tolist(), 0.9, 0.8)
    return over_all(np.array(found))


CASES: dict[str, tuple[dict[str, Any], Callable[[RewardBatch], np.ndarray]]] = {
    "group_std": ({"kind": "group_std"}, group_std),
    "group_mean": ({"kind": "group_mean"}, group_mean),
    "batch_std": ({"kind": "batch_std"}, batch_std),
    "leave_one_out": ({"kind": "leave_one_out"}, leave_one_out),
    "max_rl": ({"kind": "max_rl"}, max_rl),
    "gdpo": ({"kind": "gdpo"}, gdpo),
    "reinforce_plus_plus": ({"kind": "reinforce_plus_plus"}, reinforce_plus_plus),
    "baseline": ({"kind": "reinforce_plus_plus", "baseline": True}, lambda batch: reinforce_plus_plus(batch, True)),
    "group_tokens": ({"kind": "group_tokens"}, group_tokens),
    "gae": ({"kind": "gae", "gamma": 0.9, "gae_lambda": 0.8}, gae),
}


def advantage(**tree: Any) -> Advantage:
    made: Advantage = TypeAdapter(AdvantageSpec).validate_python(tree)
    return made


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=examples(30), deadline=None)
@given(batch=batches())
def test_advantages_are_the_formulas(name: str, batch: RewardBatch) -> None:
    tree, formula = CASES[name]
    method = advantage(**tree)
    found = method.advantages(batch)
    assert found.dtype == np.float64 and len(found) == (batch.lengths.sum() if method.by_token else len(batch.rewards))
    np.testing.assert_allclose(found, formula(batch), rtol=1e-7, atol=1e-9)


def test_every_advantage_of_the_registry_has_a_formula_here() -> None:
    members = AdvantageSpec.__origin__.__args__  # type: ignore[attr-defined]
    kinds = {member.model_fields["kind"].default for member in members} - {"custom"}
    assert kinds == {tree["kind"] for tree, _ in CASES.values()}


@pytest.mark.parametrize("name", ["group_std", "group_mean", "batch_std", "leave_one_out", "max_rl", "gdpo"])
def test_equal_rewards_and_single_samples_have_no_advantage(name: str) -> None:
    rewards = np.array([0.1, 0.1, 0.1, 7.0])
    sizes = np.array([3, 1])
    batch = RewardBatch(rewards, sizes, np.ones(4, np.int64), 1e-4, parts={"only": (1.0, rewards)})
    assert not advantage(kind=name).advantages(batch).any(), "exactly 0, although their mean is off by round-off"


@pytest.mark.parametrize("name", ["group_std", "group_mean", "batch_std", "leave_one_out", "max_rl", "gdpo"])
def test_rewards_that_are_equal_up_to_rounding_have_no_advantage(name: str) -> None:
    rewards = np.array([0.1 + 0.2, 0.3, 0.1 * 3, 0.7 - 0.4])
    sizes = np.array([4])
    assert len(set(rewards.tolist())) > 1
    batch = RewardBatch(rewards, sizes, np.ones(4, np.int64), 0.0, parts={"only": (1.0, rewards)})
    with np.errstate(invalid="ignore"):
        assert not np.nan_to_num(advantage(kind=name).advantages(batch)).any()


@pytest.mark.parametrize("rewards", [[0.1, 0.2, -0.3], [1.0, 1.1, -2.1], [3.3, -1.1, -2.2], [1e9, 0.1, -1e9 - 0.1]])
def test_a_mean_that_only_rounding_left_divides_no_advantage(rewards: list[float]) -> None:
    batch = RewardBatch(np.array(rewards), np.array([3]), np.ones(3, np.int64), 1e-4)
    assert not advantage(kind="max_rl").advantages(batch).any()


@given(batches(), st.integers(1, 4))
def test_partials_of_any_spread_give_the_same_bits(batch: RewardBatch, owners: int) -> None:
    moments = group_moments(batch.rewards, batch.sizes)
    assert batch_deviation(spread(batch.rewards, batch.sizes, owners)) == batch_deviation(moments)
