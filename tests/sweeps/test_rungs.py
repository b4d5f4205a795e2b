"""Rungs are evaluated iterations, each about `reduction` times as far as the one before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.sweeps.rungs import rungs_of


@pytest.mark.parametrize(
    ("arguments", "rungs"),
    [
        ((260, 20, 4), (20, 80, 260)),
        ((260, 20, 4, 50), (80, 260)),
        ((64, 4, 4), (4, 16, 64)),
        ((60, 1, 2), (1, 2, 4, 8, 15, 30, 60)),
        ((10, 0, 4), (10,)),
        ((10, 10, 4), (10,)),
    ],
)
def test_rungs(arguments: tuple[int, ...], rungs: tuple[int, ...]) -> None:
    assert rungs_of(*arguments) == rungs


@given(st.integers(1, 5000), st.integers(0, 60), st.integers(2, 10), st.integers(1, 100))
def test_every_rung_is_evaluated_and_later_than_the_one_before(
    total: int, every: int, reduction: int, first: int
) -> None:
    rungs = rungs_of(total, every, reduction, first)
    assert rungs[-1] == total and list(rungs) == sorted(set(rungs))
    assert all(every and rung % every == 0 and rung >= first for rung in rungs[:-1])
