"""Blocks of iterations: few enough to look at, the same for every session, and named as a person would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.phases.iteration_blocks import MOST, Block, block_of, block_size, line, table


@pytest.mark.parametrize(
    ("target", "size"), [(4, 10), (200, 10), (500, 10), (501, 20), (2500, 50), (2501, 100), (10_000, 200)]
)
def test_a_run_has_few_blocks(target: int, size: int) -> None:
    assert block_size(target) == size and -(-target // size) <= MOST


@pytest.mark.parametrize(
    ("branch", "iteration", "target", "name"),
    [
        (0, 0, 200, "iterations 0 to 10"),
        (0, 1, 200, "iterations 1 to 10"),
        (0, 11, 200, "iterations 11 to 20"),
        (0, 14, 200, "iterations 14 to 20"),
        (0, 198, 199, "iterations 198 to 199"),
        (0, 200, 200, "iteration 200"),
        (2, 11, 200, "iterations 11 to 20 of branch 2"),
    ],
)
def test_blocks_are_named_by_what_a_session_drives(branch: int, iteration: int, target: int, name: str) -> None:
    block = block_of(branch, iteration, target)
    assert block.name == name
    assert block.key == name.replace(" ", "-")
    assert block.holds(branch, iteration) and not block.holds(branch + 1, iteration)


@given(st.integers(1, 100_000), st.data())
def test_sessions_agree_on_the_ends_of_blocks(target: int, data: st.DataObject) -> None:
    iteration = data.draw(st.integers(1, target))
    block = block_of(0, iteration, target)
    later = data.draw(st.integers(iteration, block.last))
    assert block_of(0, later, target).last == block.last <= target
    assert not block.holds(0, block.last + 1)
    if block.last < target:
        assert block_of(0, block.last + 1, target) == Block(
            0, block.last + 1, min(block.last + block_size(target), target)
        )


def test_a_block_shows_the_metrics_that_an_iteration_has() -> None:
    points = {"reward/mean": {1: 0.123456, 2: 0.5}, "evaluation/accuracy": {2: 0.25}, "seconds/iteration": {1: 3.0}}
    rows = table(points, range(1, 3))
    assert [(row["iteration"], row["reward"], row["accuracy"], row["seconds"]) for row in rows] == [
        (1, 0.1235, "", 3.0),
        (2, 0.5, 0.25, ""),
    ]
    assert line(points, 1, 4) == "iteration 1 of 4, reward 0.1235, seconds 3"
    assert line(points, 2, 4) == "iteration 2 of 4, reward 0.5, accuracy 0.25"
