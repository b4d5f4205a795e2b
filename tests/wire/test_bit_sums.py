"""The sums of a bucket's bits are the same numbers everywhere, and reveal what their documentation says that they reveal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from yatt_core.wire.bit_sums import BLOCK_BYTES as BLOCK
from yatt_core.wire.bit_sums import (
    BLOCK_WORDS,
    FACTORS,
    MODULUS,
    WORD_BYTES,
    block_sums,
    sums_on_device,
    weights_of_block,
)

SIZES = st.integers(0, 70) | st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 9, 2 * BLOCK, 2 * BLOCK + 1003])
SEEDS = st.integers(0, 2**32 - 1)
NUMBERS = (1, 2, 4, 8)
"""Sizes of numbers in bytes."""


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def plain_sums(data: bytes) -> list[int]:
    """Computes the sums as they are defined, with integers of any size."""
    found = []
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        low = high = 0
        for place in range(0, len(block), WORD_BYTES):
            mixed = (place // WORD_BYTES + 1) * FACTORS[0] % MODULUS
            for shift, factor in ((30, FACTORS[1]), (27, FACTORS[2])):
                mixed = (mixed ^ (mixed >> shift)) * factor % MODULUS
            weight = ((mixed ^ (mixed >> 31)) << 17) + 2 * (place // WORD_BYTES) + 1
            word = int.from_bytes(block[place : place + WORD_BYTES].ljust(WORD_BYTES, b"\0"), "little", signed=True)
            low += weight * word
            high += weight * (word >> 32)
        found += [low % MODULUS, high % MODULUS]
    return found


@settings(deadline=None, max_examples=examples(30))
@example(size=2 * BLOCK + 1003, seed=1, at_a_time=2)
@given(size=st.integers(0, 70), seed=SEEDS, at_a_time=st.integers(1, 4))
def test_array_and_tensor_have_the_sums_of_the_definition(size: int, seed: int, at_a_time: int) -> None:
    """Whatever the number of bytes, and of blocks that are added at a time. Host memory stands in for a device's."""
    data = noise(size, seed)
    expected = plain_sums(data.tobytes())
    assert block_sums(data) == block_sums(torch.from_numpy(data)) == expected
    assert sums_on_device(torch.from_numpy(data), at_a_time) == expected


@settings(deadline=None, max_examples=examples(40))
@given(size=SIZES, seed=SEEDS, cut=st.floats(0, 1))
def test_parts_may_be_added_in_any_order(size: int, seed: int, cut: float) -> None:
    """The low sums of disjoint parts, with zeros elsewhere, add up to those of the whole, wherever it is cut."""
    data = noise(size, seed)
    first = data.copy()
    second = data.copy()
    first[int(cut * size) :] = 0
    second[: int(cut * size)] = 0
    lows = [block_sums(part)[::2] for part in (first, second, data)]
    assert [(one + other) % MODULUS for one, other in zip(lows[0], lows[1], strict=True)] == lows[2]


@settings(deadline=None, max_examples=examples(100))
@given(size=SIZES.filter(bool), seed=SEEDS, draw=st.data())
def test_any_changed_bit_changes_the_sums(size: int, seed: int, draw: st.DataObject) -> None:
    data = noise(size, seed)
    before = block_sums(data)
    data[draw.draw(st.integers(0, size - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    assert block_sums(data) != before


@pytest.mark.parametrize("width", NUMBERS)
@settings(deadline=None, max_examples=examples(200))
@given(draw=st.data())
def test_two_numbers_that_have_changed_places_change_the_sums(width: int, draw: st.DataObject) -> None:
    """Also numbers that differ in a single bit, far apart in a block or in different blocks."""
    numbers = (BLOCK + BLOCK // 2) // width
    data = np.zeros(numbers * width, np.uint8)
    elements = data.view(f"<u{width}")
    first = draw.draw(st.integers(0, numbers - 1))
    # Powers of two apart: the weights of such places differ by high powers of two.
    second = (first + (1 << draw.draw(st.integers(0, numbers.bit_length() - 1)))) % numbers
    value = draw.draw(st.integers(0, 256**width - 1))
    other = value ^ (1 << draw.draw(st.integers(0, 8 * width - 1)))
    elements[first] = value
    elements[second] = other
    before = block_sums(data)
    elements[first] = other
    elements[second] = value
    assert first == second or block_sums(data) != before


def test_every_two_weights_keep_what_the_argument_needs() -> None:
    """Odd, and apart by twice the distance of their places in the low bits."""
    low = weights_of_block().view(np.uint64) % np.uint64(1 << 17)
    np.testing.assert_array_equal(low, 2 * np.arange(BLOCK_WORDS, dtype=np.uint64) + np.uint64(1))
    assert len(np.unique(weights_of_block())) == BLOCK_WORDS


@pytest.mark.parametrize("fault", ["shifted", "swapped blocks", "zeros", "tail of another"])
def test_faults_of_transport_change_the_sums(fault: str) -> None:
    data = noise(3 * BLOCK)
    before = block_sums(data)
    changed = data.copy()
    if fault == "shifted":
        changed[8:] = data[:-8]
    elif fault == "swapped blocks":
        changed[:BLOCK] = data[BLOCK : 2 * BLOCK]
        changed[BLOCK : 2 * BLOCK] = data[:BLOCK]
    elif fault == "zeros":
        changed[1500:2960] = 0
    else:
        changed[-4096:] = noise(4096, 1)
    assert block_sums(changed) != before
