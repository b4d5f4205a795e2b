"""Types of the numbers of a tensor, bfloat16 included, which numpy lacks: its bits travel as unsigned integers.

Consumes arrays of numpy's types; produces the arrays in which their numbers are stored, rounded if asked to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BFLOAT16 = "bfloat16"
BLOCK = 1 << 20
"""Numbers that are copied at a time."""
FLOATS = frozenset({BFLOAT16, "float16", "float32", "float64"})


def storage_type(kind: str) -> np.dtype[Any]:
    """Returns numpy's type for the bits of numbers of a type.

    kind: numpy's name of the type, or `bfloat16`.
    """
    return np.dtype(np.uint16 if kind == BFLOAT16 else kind)


def put_rounded(target: Array, source: Array, kind: str) -> None:
    """Copies numbers, rounding them to the nearest number of the target's type, ties to even.

    target: as `storage_type(kind)` stores them; of the source's shape.
    """
    if kind != BFLOAT16:
        np.copyto(target, source, casting="same_kind")
        return
    # Controllers use this module's package too, and need no torch.
    import torch

    rows = np.atleast_1d(target)
    from_rows = np.atleast_1d(source)
    step = max(1, BLOCK * len(rows) // max(1, rows.size))
    for start in range(0, len(rows), step):
        block = from_rows[start : start + step]
        # Copied because torch does not support read-only arrays.
        values = torch.from_numpy(block if block.flags.writeable else block.copy())
        torch.from_numpy(rows[start : start + step]).view(torch.bfloat16).copy_(values)
