"""Arrays of weights as they travel (`yatt_core.wire.number_types`), seen as tensors; what changes in them, found and applied.

Numbers are compared as the engines hold them, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import Piece, Place
from yatt_core.wire.changes import compress, encode_positions, encode_steps
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


@torch.no_grad()
def find_changes(place: Place, held: torch.Tensor, values: torch.Tensor) -> tuple[Place, npt.NDArray[np.uint8]]:
    """Returns what has changed in a rectangle, or all of it if that takes fewer bytes, with its sizes in the place.

    held: its numbers in host memory, in the type in which they are sent; they are brought up to date.
    values: its numbers now, of any type, on any device.
    """
    new = values.to("cpu", held.dtype).contiguous().view(-1)
    bits = BITS[new.element_size()]
    before = held.contiguous().view(-1).view(bits).numpy()
    after = new.view(bits).numpy()
    changes = np.flatnonzero(before != after)
    steps, far = encode_steps(before[changes], after[changes])
    compressed = compress(steps, encode_positions(changes))
    held.copy_(new.view(held.shape))
    if far.nbytes + len(compressed) >= after.nbytes:
        return place, after.view(np.uint8)
    counted = replace(place, changes=changes.size, far=far.size, step_bytes=len(compressed))
    return counted, np.concatenate([far.view(np.uint8), compressed])


@torch.no_grad()
def write_piece(whole: torch.Tensor, piece: Piece) -> None:
    """Writes a rectangle of a contiguous tensor, rounded to its type, or changes numbers of it, in place.

    Raises `InfrastructureError` if the changes are those of numbers of another type.
    """
    values = as_tensor(piece.values, piece.kind)
    if piece.changed is None:
        whole[piece.box.slices((0,) * whole.dim())].copy_(values)
        return
    if values.dtype != whole.dtype:
        raise InfrastructureError(f"weights: changes of {values.dtype} arrived for a tensor of {whole.dtype}")
    bits = BITS[whole.element_size()]
    held = whole.view(-1).view(bits)
    at, steps = (torch.from_numpy(each).to(whole.device) for each in (piece.changed.at, piece.changed.steps))
    found = held[at] + steps.to(bits)
    found[steps == 0] = values.to(whole.device).view(bits)
    held[at] = found
