"""Rows of unequal length in flat arrays: values, and int64 offsets [rows + 1] that start at 0. Needs numpy only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]


def offsets_of(lengths: Array) -> Int64:
    """Returns the offsets [rows + 1] of rows with these lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def ragged_positions(offsets: Int64, indices: Array) -> Int64:
    """Returns the positions in the flat values of the rows at these indices, row after row."""
    lengths = np.diff(offsets)[indices]
    shifts = offsets[:-1][indices] - offsets_of(lengths)[:-1]
    positions: Int64 = np.arange(lengths.sum(), dtype=np.int64) + np.repeat(shifts, lengths)
    return positions
