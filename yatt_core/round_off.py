"""Which sums of floating-point numbers are zero, and which are equal, up to rounding.

Consumes numbers. Produces decisions that every process makes alike. 0.1 + 0.2 - 0.3 is 5.6e-17 in floating point; as a
divisor or as a difference between rewards, such a remainder would count for something that nobody meant.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

ROUND_OFF = 2.0**-40
"""What is below this fraction of the numbers that it was computed from counts as zero. The error of a sum is a few units in the
last place, 2**-53 of the terms, and a few tens of units for thousands of them.
"""


def total_of(terms: Iterable[float]) -> float:
    """Returns the sum of the terms in their order; 0 if they cancel out."""
    total = 0.0
    scale = 0.0
    for term in terms:
        total += term
        scale += abs(term)
    return total if abs(total) > ROUND_OFF * scale else 0.0


def differences(values: Float64, subtracted: Float64) -> Float64:
    """Returns values - subtracted, [N]; 0 where both are equal."""
    found = values - subtracted
    return np.where(np.abs(found) > ROUND_OFF * (np.abs(values) + np.abs(subtracted)), found, 0.0)


def are_distinct(lowest: npt.ArrayLike, highest: npt.ArrayLike) -> Bool:
    """Returns where the highest of some values is above the lowest, [N]."""
    lowest = np.asarray(lowest)
    highest = np.asarray(highest)
    distinct: Bool = highest - lowest > ROUND_OFF * np.maximum(np.abs(lowest), np.abs(highest))
    return distinct
