"""Which files of a checkpoint each rank verifies."""

from __future__ import annotations

from yatt_core.run_actors.restoring import readers_of


def test_the_ranks_of_a_node_divide_the_verification_and_each_node_verifies_everything() -> None:
    assert readers_of(["a", "b", "a", "a", "b", "c"]) == [(0, 3), (0, 2), (1, 3), (2, 3), (1, 2), (0, 1)]
