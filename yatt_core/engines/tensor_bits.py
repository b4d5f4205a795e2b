"""Arrays of weights as they travel (`yatt_core.wire.number_types`), seen as tensors, and changes applied to them."""

from __future__ import annotations

import torch

from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import Changed
from yatt_core.wire.number_types import BFLOAT16, Array

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of integers by their size in bytes."""


def as_tensor(array: Array | torch.Tensor, kind: str) -> torch.Tensor:
    """Returns a tensor over an array's memory, or over a copy if it is read-only, which torch does not support.

    array: a tensor is returned as it is.
    kind: type of the numbers: numpy's name, or `bfloat16`, whose bits the array holds as integers.
    """
    if isinstance(array, torch.Tensor):
        return array
    found = torch.from_numpy(array if array.flags.writeable else array.copy())
    return found.view(torch.bfloat16) if kind == BFLOAT16 else found


def apply_changes(whole: torch.Tensor, far: torch.Tensor, changed: Changed) -> None:
    """Changes numbers of a contiguous tensor in place.

    far: the numbers that have changed too much to be told by a step.

    Raises `InfrastructureError` if the changes are those of numbers of another type.
    """
    if far.dtype != whole.dtype:
        raise InfrastructureError(f"weights: changes of {far.dtype} arrived for a tensor of {whole.dtype}")
    bits = BITS[whole.element_size()]
    held = whole.view(-1).view(bits)
    at, steps = (torch.from_numpy(each).to(whole.device) for each in (changed.at, changed.steps))
    found = held[at] + steps.to(bits)
    found[steps == 0] = far.to(whole.device).view(bits)
    held[at] = found
