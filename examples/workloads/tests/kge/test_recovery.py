"""A run on a knowledge graph that is killed in every phase ends with the bits of one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.workloads.tests.killed import KILLED_AT, both_ways, resumed_on_another_number

SPEC = Path(__file__).parents[2] / "specs" / "ring.yaml"
# One of 38 queries that falls to another rank by rounding changes no figure by as much as the tests refuse.
SMALL = (
    "workload.settings={generated: {entities: 12, relations: 8, held_out: 0.2}, batch: 32, negatives: 4, statistics: {ht: 0.1}, "
    "members: [{model: note, width: 8, smoothing: 0.1}, {model: deepwalk, width: 8}]}",
)


def test_killed_in_every_phase(tmp_path: Path) -> None:
    both_ways(tmp_path, SPEC, SMALL, KILLED_AT)


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)])
def test_resumed_on_another_number_of_ranks(ranks: tuple[int, int], tmp_path: Path) -> None:
    resumed_on_another_number(tmp_path, SPEC, SMALL, ranks)
