"""The plan of optimizer steps: every sample once per epoch, within budget, the same on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.engines.train.steps.plan import (
    PlanShape,
    packed_batches,
    padded_batches,
    plan_digest,
    plan_step,
    plan_steps,
    seeded_permutation,
)
from yatt_core.errors import ConfigurationError


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    ranks=st.integers(1, 4),
    epochs=st.integers(1, 3),
    mini_batches=st.integers(1, 3),
    packed=st.booleans(),
    data=st.data(),
)
def test_every_epoch_takes_every_sample_once(
    sizes: list[int], ranks: int, epochs: int, mini_batches: int, packed: bool, data: st.DataObject
) -> None:
    mini_batches = min(mini_batches, len(sizes))
    count = sum(sizes)
    lengths = np.array(data.draw(st.lists(st.integers(1, 50), min_size=count, max_size=count)), dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    steps = plan_steps(lengths, offsets, PlanShape(ranks, 64, epochs, mini_batches, packed), 5, 0, 1)
    assert len(steps) == epochs * mini_batches
    for step in steps:
        placed = [index for part in step.parts for batch in part for index in batch.tolist()]
        assert sorted(placed) == step.samples.tolist()
        assert len(step.parts) == ranks
        counts = [sum(map(len, part)) for part in step.parts]
        assert max(counts) - min(counts) <= 1
        for batch in (batch for part in step.parts for batch in part):
            assert (lengths[batch].sum() if packed else len(batch) * lengths[batch].max()) <= 64
            assert (np.diff(lengths[batch]) <= 0).all(), "the longest first, so that equal lengths are neighbours"
    for epoch in range(epochs):
        taken = np.concatenate([step.samples for step in steps[epoch * mini_batches : (epoch + 1) * mini_batches]])
        assert sorted(taken.tolist()) == list(range(count))


def test_a_mini_batch_holds_whole_groups_and_epochs_differ_in_order() -> None:
    lengths = np.full(32, 5, dtype=np.int64)
    offsets = np.arange(0, 33, 4)
    shape = PlanShape(2, 100, 2, 2)
    steps = plan_steps(lengths, offsets, shape, 1, 0, 1)
    for step in steps:
        groups, counts = np.unique(step.samples // 4, return_counts=True)
        assert (len(groups), set(counts.tolist())) == (4, {4})
    assert not np.array_equal(steps[0].samples, steps[2].samples)
    assert plan_digest(steps) == plan_digest(plan_steps(lengths, offsets, shape, 1, 0, 1))
    assert plan_digest(steps) != plan_digest(plan_steps(lengths, offsets, shape, 1, 0, 2))


def test_a_single_step_takes_the_prompts_as_they_come() -> None:
    (step,) = plan_steps(np.full(6, 3, dtype=np.int64), np.array([0, 2, 6]), PlanShape(1, 100, 1, 1), 7)
    assert step.samples.tolist() == list(range(6))


def test_samples_of_similar_length_share_a_micro_batch() -> None:
    lengths = np.array([3, 9, 4, 8, 3], dtype=np.int64)
    assert [batch.tolist() for batch in padded_batches(lengths, np.arange(5), 18)] == [[1, 3], [2, 0, 4]]


def test_packed_samples_fill_their_micro_batches() -> None:
    lengths = np.array([3, 9, 4, 8, 3], dtype=np.int64)
    assert [batch.tolist() for batch in packed_batches(lengths, np.arange(5), 16)] == [[1, 2, 0], [3, 4]]
    assert len(padded_batches(lengths, np.arange(5), 16)) == 3


@pytest.mark.parametrize("cut", [padded_batches, packed_batches])
def test_a_sample_longer_than_the_budget_is_refused(cut) -> None:
    with pytest.raises(
        ConfigurationError, match=r"sample 1 .*\b30 tokens.*trainer\.engine\.micro_batch_tokens is 20\b"
    ):
        cut(np.array([3, 30], dtype=np.int64), np.arange(2), 20)


def test_a_seeded_permutation_is_pinned() -> None:
    assert seeded_permutation(8, "test", 1, 2).tolist() == [4, 5, 6, 1, 3, 0, 2, 7]


def test_even_ranks_have_equally_many_micro_batches_and_every_sample_once() -> None:
    lengths = np.array([9, 8, 7, 1, 1, 1, 1, 1, 1, 1], dtype=np.int64)
    plan = plan_step(lengths, np.arange(10), 3, 10, even=True)
    assert len({len(part) for part in plan.parts}) == 1
    samples = np.concatenate([batch for part in plan.parts for batch in part])
    assert sorted(samples.tolist()) == list(range(10))
    for part in plan.parts:
        for batch in part:
            assert len(batch) * max(lengths[batch], default=0) <= 10


def test_even_ranks_without_samples_idle() -> None:
    one = np.array([4], dtype=np.int64)
    plan = plan_step(one, np.arange(1), 3, 10, even=True)
    assert [[batch.tolist() for batch in part] for part in plan.parts] == [[[0]], [[]], [[]]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_batch_without_samples_has_steps_without_any(ranks: int) -> None:
    """A streamed shard of which no sample has a score."""
    nothing = np.empty(0, dtype=np.int64)
    for even in (False, True):
        (step,) = plan_steps(nothing, np.zeros(1, dtype=np.int64), PlanShape(ranks, 64, 1, 1, even=even), 5, 0, 1)
        assert len(step.samples) == 0
        assert [sum(map(len, part)) for part in step.parts] == [0] * ranks
