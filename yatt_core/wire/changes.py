"""Which numbers of a rectangle have changed, and by how much, in few bytes.

A position takes a byte: the distance from the last one, and one more byte for each 255 in it. A change takes half a byte
if it leads to one of the next seven numbers of the type, in either direction: the difference of the bits, as integers.
All others are sent as they are. After a small step most numbers of type bfloat16 stay the same, and most others move to
a neighbour. Pure functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FAR = 255
"""A byte that adds 255 to the distance without naming a position."""
NEAR = 7
"""The largest difference that is sent as such."""
Bits = npt.NDArray[Any]
"""The bits of numbers, as integers."""


def encode_positions(positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Returns ascending positions as bytes."""
    distances = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum(distances // FAR + 1)
    encoded = np.full(int(ends[-1]) if len(ends) else 0, FAR, np.uint8)
    encoded[ends - 1] = distances % FAR
    return encoded


def decode_positions(encoded: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Returns the positions that `encode_positions` encoded."""
    named = encoded != FAR
    travelled = np.cumsum(encoded.astype(np.int64) + named)
    found: npt.NDArray[Any] = travelled[named] - 1
    return found


def encode_steps(before: Bits, after: Bits) -> tuple[npt.NDArray[np.uint8], Bits]:
    """Returns the differences of changed numbers, two in a byte, and the bits of those that are too far."""
    steps = after - before
    near = (steps >= -NEAR) & (steps <= NEAR)
    codes = np.zeros(-(-len(steps) // 2) * 2, np.uint8)
    codes[: len(steps)][near] = (steps[near] + NEAR + 1).astype(np.uint8)
    packed: npt.NDArray[np.uint8] = np.bitwise_or(np.left_shift(codes[0::2], 4), codes[1::2]).astype(np.uint8)
    return packed, after[~near]


def decode_steps(packed: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.int8]:
    """Returns the differences that `encode_steps` encoded; 0 for those that are too far.

    count: number of changes.
    """
    codes = np.empty(2 * len(packed), np.uint8)
    codes[0::2] = packed >> 4
    codes[1::2] = packed & 15
    codes = codes[:count]
    return np.where(codes, codes.astype(np.int8) - (NEAR + 1), 0).astype(np.int8)
