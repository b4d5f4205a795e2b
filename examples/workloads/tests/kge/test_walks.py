"""Random walks on triples: DeepWalk's pairs, and statistics told by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from yatt_workloads.kge.ranking import Queries
from yatt_workloads.kge.settings import Walk
from yatt_workloads.kge.walks import Neighbours, Statistics

TRIPLES = np.array([[0, 0, 1], [0, 0, 2], [0, 1, 2], [3, 1, 2]])


@pytest.mark.parametrize(
    ("walk", "tails"),
    [
        ("rt", [0, 1 / 2, 1 / 2, 0]),
        ("ht", [0, 1 / 3, 2 / 3, 0]),
        # 0 to 1 by a third, which leads back to 0 alone; to 2 by two thirds, which leads to 0 by two thirds and to 3.
        ("htht", [0, (1 / 3 + 4 / 9) / 3, (1 / 3 + 4 / 9) * 2 / 3 + 2 / 9, 0]),
        # Relation 0 has head 0 alone, which has relation 0 by two thirds and 1 by a third; that one has tail 2 alone.
        ("rhrt", [0, 1 / 3, 2 / 3, 0]),
    ],
)
def test_statistics_are_probabilities_of_walks(walk: Walk, tails: list[float]) -> None:
    found = Statistics(TRIPLES, 4, 2).of(walk, Queries.of(TRIPLES[:1], inverse=False))
    torch.testing.assert_close(found, torch.tensor([tails], dtype=torch.float64))


def test_with_the_tail_known_heads_and_tails_change_places() -> None:
    query = Queries.of(TRIPLES[1:2], inverse=True)
    found = Statistics(TRIPLES, 4, 2)
    assert found.of("ht", query)[0].tolist() == pytest.approx([2 / 3, 0, 0, 1 / 3])
    assert found.of("rt", query)[0].tolist() == [1, 0, 0, 0]


def test_pairs_are_neighbours_within_the_hops() -> None:
    neighbours = Neighbours(TRIPLES, 4)
    near = {(0, 1), (1, 0), (0, 2), (2, 0), (3, 2), (2, 3)}
    one = {tuple(pair) for pair in neighbours.pairs(500, 1, np.random.default_rng(1)).tolist()}
    assert one == near
    two = {tuple(pair) for pair in neighbours.pairs(500, 2, np.random.default_rng(1)).tolist()}
    assert (1, 2) in two and (0, 3) in two and (1, 3) not in two
