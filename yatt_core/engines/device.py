"""Where an engine computes: the GPU that its process was given, else the processor's cores. Chosen here alone.

Ray shows an actor its GPU and no other; a process without Ray takes the current one. What is to lie on a GPU is put there by
`placed`, which looks first whether there is room.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from yatt_core.errors import InfrastructureError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Of a GPU, in bytes, as its driver counts them: what nobody has taken, and all."""

    name: str
    free: int
    total: int


def own_device() -> torch.device:
    """Where this process computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def repeat_bits(device: torch.device) -> None:
    """Has a GPU add up in the same order each time, as a replay of an exact run has to; cores do so by themselves.

    From then on torch raises `RuntimeError` for what a GPU can only do in an order that changes. To be called before the GPU
    multiplies its first matrices.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # New memory is written before it is read: filling it besides would cost time alone.
        settings: Any = torch.utils.deterministic
        settings.fill_uninitialized_memory = False


def placed(model: nn.Module, device: torch.device, role: str, besides: int = 0) -> nn.Module:
    """The model on a device. besides: bytes that will follow. Raises `InfrastructureError`, as `require_room`."""
    if device.type == "cuda":
        tensors = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
        free, total = torch.cuda.mem_get_info(device)
        reading = MemoryReading(torch.cuda.get_device_name(device), free, total)
        require_room(role, sum(tensors.values()) + besides, reading)
    return model.to(device)


def require_room(role: str, needed: int, reading: MemoryReading) -> None:
    """Raises `InfrastructureError` where a GPU has not so many bytes free. role: what they are for, such as `the trainer`."""
    if needed > reading.free:
        raise InfrastructureError(
            f"{role} needs {needed / GIB:.1f} GiB on the {reading.name}, of whose {reading.total / GIB:.1f} GiB"
            f" {reading.free / GIB:.1f} are free; end what else uses it (nvidia-smi names it), or give the run more devices"
        )


def on_cores(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors one after another where numpy can read them: themselves, or copies of those on a GPU."""
    return ((name, tensor.cpu()) for name, tensor in tensors.items())
