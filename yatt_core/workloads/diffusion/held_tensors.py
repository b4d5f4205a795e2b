"""A network's tensors as a rank holds them, whole or divided over the ranks by rows, and as a checkpoint has them.

Consumes tensors by name, some of which may be those of FSDP2. Produces what the contract's `State` is made of, and reads it
back. Nothing is sent to other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from yatt_core.errors import DataError
from yatt_core.sharded_rows import own_rows
from yatt_core.workloads.contract import Rows, SavedTensors


@torch.no_grad()
def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's rows of a tensor, or the whole one, in the memory that the tensor has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def divided_like(values: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor | Rows:
    """Returns values of a parameter's own shape as the contract wants them: rows if the parameter is divided."""
    if not isinstance(parameter, DTensor):
        return values
    return Rows(values, own_rows(parameter).start, parameter.shape[0])


def held(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | Rows]:
    """Returns tensors as the contract wants them."""
    return {name: divided_like(local(tensor), tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def read(tensor: torch.Tensor, values: torch.Tensor, saved: SavedTensors, name: str) -> None:
    """Reads what a rank holds of a saved tensor.

    tensor: has the whole shape.
    values: this rank's rows of it, or all, which are overwritten.

    Raises `DataError` if there is no such tensor, or if it has another shape.
    """
    if saved.shapes.get(name, tensor.shape) != tensor.shape:
        raise DataError(f"{name} has the shape {list(saved.shapes[name])}; expected {list(tensor.shape)}")
    if isinstance(tensor, DTensor):
        rows = own_rows(tensor)
        values.copy_(saved.rows(name, rows.start, rows.stop))
    else:
        values.copy_(saved.whole(name))
