"""Counter-based noise: maps seeds to uniform numbers, for all rows and tokens at once.

A response's noise is a function of its seed and the token's position in the response, so it is the same in
any batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from yatt_core.protocols.generation import UInt64

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: UInt64, length: int) -> npt.NDArray[np.float64]:
    """Returns the noise of every token, [rows, length] in [0, 1), with 32 random bits per number.

    seeds: [rows].

    The generator is counter-based: SplitMix64 (Steele, Lea, Flood 2014, doi 10.1145/2660193.2660195), which
    starts at `mix` of the seed instead of the seed itself. Otherwise, the streams of seeds that differ by a
    multiple of the increment would overlap.
    """
    start = mix(seeds + _GAMMA)
    counters = np.arange(1, length + 1, dtype=np.uint64) * _GAMMA
    high_bits = mix(start[:, None] + counters[None, :]) >> np.uint64(32)
    return high_bits.astype(np.float64) * 2.0**-32


def mix(values: UInt64) -> UInt64:
    """Applies the output function of SplitMix64, a bijection of 64-bit words."""
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLIER_1
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLIER_2
    return values ^ (values >> np.uint64(31))
