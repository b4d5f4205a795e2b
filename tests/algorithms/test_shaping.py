"""Length penalties against their formulas, one response at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.algorithms.shaping.linear import LinearPenalty
from yatt_core.algorithms.shaping.overlong import OverlongPenalty


@given(st.lists(st.integers(0, 100), max_size=6), st.integers(1, 60), st.floats(0.1, 3.0))
def test_the_soft_overlong_penalty_is_that_of_dapo(lengths: list[int], buffer: int, penalty: float) -> None:
    expected = []
    for length in lengths:
        if length <= 100 - buffer:
            expected.append(0.0)
        elif length <= 100:
            expected.append(-penalty * ((100 - buffer) - length) / buffer)
    found = OverlongPenalty(buffer=buffer, penalty=penalty).penalties(np.array(lengths, dtype=np.int64), 100)
    np.testing.assert_allclose(found, expected)


def test_without_a_buffer_the_last_fifth_of_the_limit_is_penalised_as_published() -> None:
    assert [OverlongPenalty().buffer_of(longest) for longest in (20480, 512, 6, 2)] == [4096, 102, 1, 1]
    lengths = np.array([0, 16384, 18432, 20480], dtype=np.int64)
    assert OverlongPenalty().penalties(lengths, 20480).tolist() == [0.0, 0.0, 0.5, 1.0]


def test_the_linear_penalty() -> None:
    assert LinearPenalty(penalty=0.5).penalties(np.array([0, 10, 40]), 40).tolist() == [0.0, 0.125, 0.5]
