"""Which numbers of a rectangle have changed, and by how much, in few bytes.

A position takes a byte: the distance from the last one, and one more byte for each 255 in it. A change takes half a byte
if it leads to one of the next seven numbers of the type, in either direction: the difference of the bits, as integers.
All others are sent as they are. Short distances and steps are the frequent ones, so both are compressed by Huffman's code.
After a small step most numbers of type bfloat16 stay the same, and most others move to a neighbour: each of these then
takes six bits or so. Pure functions.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

FAR = 255
"""A byte that adds 255 to the distance without naming a position."""
NEAR = 7
"""The largest difference that is sent as such."""
Bits = npt.NDArray[Any]
"""The bits of numbers, as integers."""
Encoded = npt.NDArray[np.uint8]
"""Bytes that stand for positions or steps."""


def compress(steps: Encoded, positions: Encoded) -> Encoded:
    """Returns encoded steps and positions in fewer bytes: none for none."""
    if not len(positions):
        return np.empty(0, np.uint8)
    coder = zlib.compressobj(level=1, wbits=-zlib.MAX_WBITS, strategy=zlib.Z_HUFFMAN_ONLY)
    # After the flush positions get a code of their own.
    parts = (coder.compress(steps.data), coder.flush(zlib.Z_SYNC_FLUSH), coder.compress(positions.data), coder.flush())
    return np.frombuffer(b"".join(parts), np.uint8)


def decompress(compressed: Encoded, count: int) -> tuple[Encoded, Encoded]:
    """Returns the encoded steps and positions that `compress` compressed. count: number of changes."""
    if not count:
        return compressed, compressed
    both = np.frombuffer(zlib.decompress(compressed.data, wbits=-zlib.MAX_WBITS), np.uint8)
    steps = -(-count // 2)
    return both[:steps], both[steps:]


def encode_positions(positions: npt.NDArray[np.int64]) -> Encoded:
    """Returns ascending positions as bytes."""
    distances = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum(distances // FAR + 1)
    encoded = np.full(int(ends[-1]) if len(ends) else 0, FAR, np.uint8)
    encoded[ends - 1] = distances % FAR
    return encoded


def decode_positions(encoded: Encoded) -> npt.NDArray[np.int64]:
    """Returns the positions that `encode_positions` encoded."""
    named = encoded != FAR
    travelled = np.cumsum(encoded.astype(np.int64) + named)
    found: npt.NDArray[Any] = travelled[named] - 1
    return found


def encode_steps(before: Bits, after: Bits) -> tuple[Encoded, Bits]:
    """Returns the differences of changed numbers, two in a byte, and the bits of those that are too far."""
    steps = after - before
    near = (steps >= -NEAR) & (steps <= NEAR)
    codes = np.zeros(-(-len(steps) // 2) * 2, np.uint8)
    codes[: len(steps)][near] = (steps[near] + NEAR + 1).astype(np.uint8)
    packed: Encoded = np.bitwise_or(np.left_shift(codes[0::2], 4), codes[1::2]).astype(np.uint8)
    return packed, after[~near]


def decode_steps(packed: Encoded, count: int) -> npt.NDArray[np.int8]:
    """Returns the differences that `encode_steps` encoded; 0 for those that are too far.

    count: number of changes.
    """
    codes = np.empty(2 * len(packed), np.uint8)
    codes[0::2] = packed >> 4
    codes[1::2] = packed & 15
    codes = codes[:count]
    return np.where(codes, codes.astype(np.int8) - (NEAR + 1), 0).astype(np.int8)
