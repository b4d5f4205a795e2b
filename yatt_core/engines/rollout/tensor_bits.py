"""Arrays of weights as they travel (`yatt_core.wire.number_types`), seen as tensors."""

from __future__ import annotations

import torch

from yatt_core.wire.number_types import BFLOAT16, Array


def as_tensor(array: Array, kind: str) -> torch.Tensor:
    """Returns a tensor over an array's memory, or over a copy if it is read-only, which torch does not support.

    kind: type of the numbers: numpy's name, or `bfloat16`, whose bits the array holds as integers.
    """
    found = torch.from_numpy(array if array.flags.writeable else array.copy())
    return found.view(torch.bfloat16) if kind == BFLOAT16 else found
