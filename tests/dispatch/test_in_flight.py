"""Bytes in flight: never above the bound, except for a single larger batch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.dispatch.in_flight import BytesInFlight, bytes_of
from yatt_core.protocols.generation import GenerateRequest


@given(st.integers(1, 50), st.lists(st.tuples(st.booleans(), st.integers(1, 80)), max_size=60))
def test_the_bound_is_kept_and_a_larger_batch_goes_alone(bound, steps):
    in_flight = BytesInFlight(bound)
    taken = []
    peak = 0
    for takes, size in steps:
        if not takes:
            if taken:
                in_flight.give(taken.pop(0))
        elif in_flight.take(size):
            taken.append(size)
        else:
            assert taken and sum(taken) + size > bound
        assert in_flight.now == sum(taken)
        assert sum(taken) <= bound or len(taken) == 1
        peak = max(peak, sum(taken))
    assert in_flight.peak == peak


def test_anything_is_accepted_if_nothing_is_in_flight():
    assert BytesInFlight(10).take(1000)


def test_a_batch_counts_its_prompts_seeds_and_longest_possible_answers():
    prompts = [np.zeros(3, np.int32), np.zeros(5, np.int32)]
    request = GenerateRequest(prompts, np.zeros((2, 4), np.uint64), 100, (), 0)
    assert bytes_of(request) == 8 * 4 + 8 * 8 + 8 * (100 * 8 + 5)


def test_answers_with_lower_limits_count_less():
    prompts = [np.zeros(3, np.int32), np.zeros(5, np.int32)]
    limits = np.array([100, 20], np.int32)
    request = GenerateRequest(prompts, np.zeros((2, 4), np.uint64), 100, (), 0, limits=limits)
    assert bytes_of(request) == 8 * 4 + 8 * 8 + 2 * 4 + 4 * (120 * 8) + 8 * 5
