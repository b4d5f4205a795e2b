"""Balancing and packing: every sample once, within bounds, as even as required."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from yatt_core.engines.train.steps import balance
from yatt_core.engines.train.steps.balance import balance_equal, pack
from yatt_core.errors import ConfigurationError

lengths_lists = st.lists(st.integers(0, 9000), max_size=200).map(lambda v: np.array(v, dtype=np.int64))


def lognormal(seed: int, count: int) -> np.ndarray:
    """Returns lengths from the distribution that the claims are stated for."""
    draws = np.random.default_rng(seed).lognormal(np.log(600), 1, count)
    return np.clip(np.rint(draws), 16, 8192).astype(np.int64)


def once_each(shares, count: int) -> bool:
    return sorted(np.concatenate([np.empty(0, int), *shares]).tolist()) == list(range(count))


def unevenness(lengths, shares) -> float:
    loads = [lengths[share].sum() for share in shares]
    return max(loads) / (sum(loads) / len(loads))


@settings(max_examples=examples(200), deadline=None)
@given(lengths_lists, st.integers(1, 12))
def test_equal_counts(lengths, ranks):
    shares = balance_equal(lengths, ranks)
    counts = [len(share) for share in shares]
    assert len(shares) == ranks
    assert once_each(shares, len(lengths))
    assert max(counts) - min(counts) <= 1
    assert all(np.array_equal(share, np.sort(share)) for share in shares)
    again = balance_equal(lengths.copy(), ranks)
    assert all(np.array_equal(a, b) for a, b in zip(shares, again, strict=True))


@settings(max_examples=examples(200), deadline=None)
@given(lengths_lists, st.integers(0, 9000))
def test_bins_hold_their_capacity_and_none_could_be_merged(lengths, spare):
    capacity = int(lengths.max(initial=1)) + spare
    bins = pack(lengths, capacity)
    assert once_each(bins, len(lengths))
    loads = sorted(int(lengths[members].sum()) for members in bins)
    assert not loads or loads[-1] <= capacity
    assert len(loads) < 2 or loads[0] + loads[1] > capacity


@pytest.mark.parametrize(("count", "ranks"), [(512, 8), (8192, 64)])
def test_equal_counts_are_even_to_half_a_thousandth(count, ranks):
    for seed in range(10):
        lengths = lognormal(seed, count)
        assert unevenness(lengths, balance_equal(lengths, ranks)) <= 1.0005


def test_packing_needs_at_most_one_bin_more_than_the_optimum():
    extra = []
    for seed in range(10):
        lengths = lognormal(seed, 4096)
        extra.append(len(pack(lengths, 16_384)) - int(-(-lengths.sum() // 16_384)))
    assert max(extra) <= 1
    assert sum(extra) <= 1


def test_swaps_reduce_unevenness(monkeypatch):
    lengths = lognormal(3, 32)
    swapped = unevenness(lengths, balance_equal(lengths, 4))
    monkeypatch.setattr(balance, "SWAPS_PER_RANK", 0)
    assert swapped < unevenness(lengths, balance_equal(lengths, 4))


def test_a_sample_beyond_the_capacity_is_named():
    with pytest.raises(ConfigurationError, match=r"sample 1 .*\b17 tokens.*\b16\b"):
        pack(np.array([3, 17]), 16)
