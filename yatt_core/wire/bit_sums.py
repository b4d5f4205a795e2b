"""Exact integer sums of the bits of a bucket: the check of transfers, computed wherever the bucket is.

Consumes bytes in an array of numpy or in a tensor of torch on any device; produces integers, the same ones everywhere, since
they take nothing but sums and products of 64-bit integers, which wrap around. Only the integers leave a device.

The bytes are cut into blocks of `BLOCK_WORDS` words w(r) of 64 bits, of which the last one is filled up with zeros. A block has
two sums over its words, modulo 2^64, with the weights a(r) of `weights_of_block`:

    low  = sum over r of a(r) w(r)
    high = sum over r of a(r) (w(r) >> 32), an arithmetic shift

What they reveal, and why. All weights are odd, two weights differ by 2 (i - j) modulo 2^17, and their bits above the 17th
are mixed.

- A fault within one word, whatever it is: `low` changes by a(r) D, where 0 < |D| < 2^64, and an odd factor has an inverse.
- Two numbers of e = 1, 2, 4 or 8 bytes that have changed places within a block. At the same place of words i and j, the
  words change by D and -D, and a sum by D (a(i) - a(j)), whose second factor is divisible by 2^16 at most. If D is divisible
  by 2^31 at most, `low` changes. Otherwise the shifted words change by D / 2^32 and its negative, which are divisible by 2^31
  at most, and `high` changes. At the bits s < t of two words, `low` changes by d 2^s (a(i) - 2^(t - s) a(j)), whose last
  factor is odd; d is divisible by 2^(8e - 1) at most, and s is 64 - 16e at most.
- Two numbers of different blocks: in each block this is a fault within one word.
- Any other fault, such as a lost packet, the bytes of another bucket or numbers that were not written, goes unnoticed only
  if it adds up to zero in both sums: about once in 2^64 faults that have nothing to do with the weights. Someone who knows
  the weights can make such a fault: the sums guard against accidents of transport, not against adversaries.

The order in which the products are added does not matter, nor how many blocks are added at a time.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    Bytes = npt.NDArray[np.uint8] | torch.Tensor

WORD_BYTES = 8
BLOCK_WORDS = 1 << 16
"""Words of a block. On a processor a block's products stay in its cache."""
BLOCK_BYTES = BLOCK_WORDS * WORD_BYTES
DEVICE_BLOCKS = 64
"""Blocks that are added at a time on a GPU, which takes twice their memory."""
PLACE_BITS = np.uint64(17)
"""The low bits of a weight, which tell its place: twice the place, and one."""
FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Odd factors that mix the bits of a place, those of the generator SplitMix64."""
MODULUS = 1 << 64


def block_sums(data: Bytes) -> list[int]:
    """Returns `low` and `high` of each block, as integers of 64 bits without a sign, in the order of the blocks.

    data: contiguous bytes; a tensor's begin at a multiple of eight bytes of its storage.
    """
    if isinstance(data, np.ndarray):
        return _sums(data, weights_of_block(), 1)
    return block_sums(data.numpy()) if data.device.type == "cpu" else sums_on_device(data)


def sums_on_device(data: torch.Tensor, at_a_time: int = DEVICE_BLOCKS) -> list[int]:
    """Does the work of `block_sums` where a tensor is, several blocks at a time."""
    return _sums(data, _weights_on(data.device), at_a_time)


def _sums(data: Bytes, weights: Any, at_a_time: int) -> list[int]:
    """Does the work of `block_sums`, with arrays or with tensors."""
    whole = data.nbytes // BLOCK_BYTES * BLOCK_BYTES
    found = list[int]()
    for start in range(0, whole, at_a_time * BLOCK_BYTES):
        blocks = data[start : min(start + at_a_time * BLOCK_BYTES, whole)]
        found += _sums_of_rows(blocks.view(weights.dtype).reshape(-1, BLOCK_WORDS), weights)
    if rest := data.nbytes - whole:
        words = -(-rest // WORD_BYTES)
        size = words * WORD_BYTES
        last: Any = np.zeros(size, np.uint8) if isinstance(data, np.ndarray) else data.new_zeros(size)
        last[:rest] = data[whole:]
        found += _sums_of_rows(last.view(weights.dtype).reshape(1, words), weights[:words])
    return found


def _sums_of_rows(rows: Any, weights: Any) -> list[int]:
    """Returns the sums of blocks. rows: [blocks, words]."""
    lows = (rows * weights).sum(1).tolist()
    highs = ((rows >> 32) * weights).sum(1).tolist()
    return [each % MODULUS for pair in zip(lows, highs, strict=True) for each in pair]


@cache
def weights_of_block() -> npt.NDArray[np.int64]:
    """Returns the weight of each word of a block."""
    places = np.arange(BLOCK_WORDS, dtype=np.uint64)
    one = np.uint64(1)
    mixed = (places + one) * np.uint64(FACTORS[0])
    for shift, factor in zip((30, 27), FACTORS[1:], strict=True):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    weights = (mixed << PLACE_BITS) | (places << one) | one
    return weights.view(np.int64)


@cache
def _weights_on(device: torch.device) -> torch.Tensor:
    import torch

    return torch.from_numpy(weights_of_block()).to(device)
