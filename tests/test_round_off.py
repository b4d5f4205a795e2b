"""Sums that are zero, and numbers that are equal, up to rounding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.round_off import are_distinct, differences, total_of

NUMBERS = st.floats(-1e6, 1e6).filter(lambda number: number == 0.0 or abs(number) > 1e-6)


@pytest.mark.parametrize("terms", [(0.1, 0.2, -0.3), (1.1, -1.0, -0.1), (0.7, -0.4, -0.3), (1e9, 0.1, -1e9 - 0.1)])
def test_terms_that_cancel_out_have_a_total_of_0_in_any_order(terms: tuple[float, ...]) -> None:
    assert {total_of(order) for order in itertools.permutations(terms)} == {0.0}
    assert any(sum(order) for order in itertools.permutations(terms)), "and Python's sum does not see it"


@given(st.lists(NUMBERS, max_size=8))
def test_a_total_is_the_sum_or_0(terms: list[float]) -> None:
    plain = 0.0
    for term in terms:
        plain += term
    assert total_of(terms) in (plain, 0.0)
    assert total_of(terms) == plain or abs(plain) < 1e-12 * sum(map(abs, terms))


@given(NUMBERS, NUMBERS)
def test_small_rewards_are_kept_and_only_round_off_is_not(value: float, other: float) -> None:
    [found] = differences(np.array([value]), np.array([other]))
    assert found in (value - other, 0.0)
    distinct = bool(are_distinct(np.array([min(value, other)]), np.array([max(value, other)]))[0])
    assert distinct == (abs(value - other) > 2.0**-40 * max(abs(value), abs(other)))


def test_sums_of_the_same_numbers_are_not_distinct() -> None:
    sums = [0.1 + 0.2, 0.3, 0.7 - 0.4]
    assert len(set(sums)) == 3
    assert not are_distinct(np.array([min(sums)]), np.array([max(sums)]))[0]
    assert are_distinct(np.array([0.0, -1e-9, 0.3]), np.array([1e-12, 0.0, 0.3 + 1e-9])).all()
