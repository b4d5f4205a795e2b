"""Types of the numbers of a tensor, bfloat16 included, which numpy lacks: its bits travel as unsigned integers.

Consumes names of types; produces numpy's types of the arrays in which their numbers are stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BFLOAT16 = "bfloat16"
FLOATS = frozenset({BFLOAT16, "float16", "float32", "float64"})


def storage_type(kind: str) -> np.dtype[Any]:
    """Returns numpy's type for the bits of numbers of a type.

    kind: numpy's name of the type, or `bfloat16`.
    """
    return np.dtype(np.uint16 if kind == BFLOAT16 else kind)
