"""Changes in few bytes: positions and steps come back as they were, and rare changes are cheap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.wire.changes import (
    compress,
    decode_positions,
    decode_steps,
    decompress,
    encode_positions,
    encode_steps,
)


@given(st.sets(st.integers(0, 5000)))
def test_positions_come_back(positions: set[int]) -> None:
    given_ = np.array(sorted(positions), np.int64)
    np.testing.assert_array_equal(decode_positions(encode_positions(given_)), given_)


@pytest.mark.parametrize("distance", [1, 254, 255, 256, 510, 511, 100_000])
def test_distances_around_a_byte_come_back(distance: int) -> None:
    positions = np.cumsum([distance - 1, distance, 1])
    encoded = encode_positions(positions)
    np.testing.assert_array_equal(decode_positions(encoded), positions)
    assert len(encoded) == 3 + 2 * ((distance - 1) // 255)


@given(st.lists(st.tuples(st.integers(-(2**15), 2**15 - 1), st.integers(-20, 20).filter(bool)), max_size=9))
def test_steps_come_back_even_where_integers_wrap(changes: list[tuple[int, int]]) -> None:
    before = np.array([each for each, _ in changes], np.int16)
    after = before + np.array([step for _, step in changes], np.int16)
    packed, far = encode_steps(before, after)
    steps = decode_steps(packed, len(changes))
    found = before + steps
    found[steps == 0] = far
    np.testing.assert_array_equal(found, after)
    assert len(packed) == -(-len(changes) // 2) and len(far) == sum(abs(step) > 7 for _, step in changes)


@given(st.sets(st.integers(0, 5000)), st.integers(0, 2**32 - 1))
def test_compressed_steps_and_positions_come_back(positions: set[int], seed: int) -> None:
    where = encode_positions(np.array(sorted(positions), np.int64))
    before = np.random.default_rng(seed).integers(-(2**15), 2**15, len(positions)).astype(np.int16)
    steps, _ = encode_steps(before, before + np.int16(1))
    found_steps, found_positions = decompress(compress(steps, where), len(positions))
    np.testing.assert_array_equal(found_steps, steps)
    np.testing.assert_array_equal(found_positions, where)


def test_a_change_to_a_neighbour_takes_few_bits() -> None:
    """One number in twelve has changed, as after a few small steps of numbers of type bfloat16."""
    rng = np.random.default_rng(0)
    changed = np.flatnonzero(rng.random(1 << 18) < 1 / 12)
    before = np.zeros(len(changed), np.int16)
    steps, far = encode_steps(before, rng.choice(np.array([-1, 1], np.int16), len(changed)))
    assert not len(far) and 8 * len(compress(steps, encode_positions(changed))) < 6.5 * len(changed)
