"""Columns that go from rank to rank have the bits of sums over columns that are zero elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.train.tables import ThreadCollective, on_threads
from yatt_core.engines.train.ranks.collective import Collective, ReplicaCollective
from yatt_core.engines.train.steps.plan import StepPlan, plan_step
from yatt_core.engines.train.steps.shared_columns import moved, samples_of, shared
from yatt_core.wire.ragged import offsets_of, ragged_positions

NOISE = np.random.default_rng(5)
LENGTHS = NOISE.integers(0, 9, 11)
OFFSETS = offsets_of(LENGTHS)
COLUMNS = {
    "float32": NOISE.normal(size=int(OFFSETS[-1])).astype(np.float32),
    "float64": NOISE.normal(size=int(OFFSETS[-1])),
    "wide": NOISE.normal(size=(int(OFFSETS[-1]), 3)).astype(np.float32),
    "tokens": NOISE.integers(0, 99, (int(OFFSETS[-1]), 2)).astype(np.int32),
    "negative zeros": np.full(int(OFFSETS[-1]), -0.0, dtype=np.float32),
}


def plan_of(ranks: int, lengths: np.ndarray[Any, Any] = LENGTHS) -> StepPlan:
    return plan_step(lengths, np.arange(len(lengths)), ranks, budget=20)


def own_of(column: np.ndarray[Any, Any], plan: StepPlan, part: int) -> np.ndarray[Any, Any]:
    """Returns the column with zeros wherever the part has no sample."""
    found = np.zeros_like(column)
    at = ragged_positions(OFFSETS, samples_of(plan, part))
    found[at] = column[at]
    return found


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_has_the_bits_of_a_sum_over_the_ranks(name: str, ranks: int) -> None:
    plan = plan_of(ranks)
    column = COLUMNS[name]

    def both(collective: ThreadCollective) -> tuple[bytes, bytes]:
        own = own_of(column, plan, collective.rank)
        total = own if ranks == 1 else collective.sum(torch.from_numpy(own.copy())).numpy()
        return shared(collective, plan, OFFSETS, own).tobytes(), total.tobytes()

    found = on_threads(ranks, both)
    assert all(one == (total, total) for one, (_, total) in zip(found, found, strict=True))
    assert len({one for one, _ in found}) == 1


@pytest.mark.parametrize("name", COLUMNS)
def test_a_rank_gets_what_it_needs_of_another_plan_and_nothing_else(name: str) -> None:
    column = COLUMNS[name]
    plan = plan_of(3)
    to = plan_of(3, LENGTHS[::-1] + 1)
    assert any(samples_of(plan, part).tolist() != samples_of(to, part).tolist() for part in range(3))
    found = on_threads(3, lambda group: moved(group, plan, to, OFFSETS, own_of(column, plan, group.rank)))
    for part, own in enumerate(found):
        expected = own_of(column, to, part)
        assert own.tobytes() == (expected + expected.dtype.type(0)).tobytes()


def test_only_the_rank_that_speaks_for_a_part_is_heard() -> None:
    plan = plan_of(2)
    column = COLUMNS["float32"]

    def heard(world: ThreadCollective) -> bytes:
        group = ReplicaCollective(world, world.rank // 2, 2, speaks=world.rank % 2 == 1)
        own = own_of(column, plan, group.rank) if group.speaks else np.full_like(column, np.nan)
        return shared(group, plan, OFFSETS, own).tobytes() + moved(group, plan, plan, OFFSETS, own).tobytes()

    found = on_threads(4, heard)
    parts = [own_of(column, plan, part).tobytes() for part in (0, 0, 1, 1)]
    assert found == [column.tobytes() + part for part in parts]


def test_a_rank_that_is_alone_sends_nothing() -> None:
    column = COLUMNS["float64"]
    assert shared(Collective(), plan_of(1), OFFSETS, column) is column
    assert moved(Collective(), plan_of(1), plan_of(1), OFFSETS, column) is column
