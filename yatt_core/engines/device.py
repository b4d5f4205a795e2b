"""The device that an engine computes on: the GPU assigned to its process, otherwise the CPU. It is chosen only here.

Ray exposes to an actor only that actor's own GPU; a process without Ray takes the current one. `placed` moves a model
to a GPU after checking that there is enough free memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from yatt_core.engines.host_memory import keep_freed_memory
from yatt_core.errors import InfrastructureError
from yatt_core.spec.run import RunSpec

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The memory of a GPU in bytes, as reported by its driver."""

    name: str
    free: int
    total: int


def own_device() -> torch.device:
    """Returns the device on which this process computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def prepared_device(spec: RunSpec) -> torch.device:
    """Prepares this process for a run's trainer or sampler: one thread, memory that is kept; returns its device."""
    torch.set_num_threads(1)
    keep_freed_memory()
    device = own_device()
    if spec.is_exact:
        repeat_bits(device)
    return device


def repeat_bits(device: torch.device) -> None:
    """Makes a GPU add in the same order every time, as exact replay requires; CPU cores do so anyway.

    From then on torch raises `RuntimeError` for operations that a GPU can only run in a varying order. Call
    this before the GPU's first matrix multiplication.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # New memory is always written before it is read, so filling it first would only cost time.
        settings: Any = torch.utils.deterministic
        settings.fill_uninitialized_memory = False


def placed(model: nn.Module, device: torch.device, role: str, besides: int = 0) -> nn.Module:
    """Moves the model to a device.

    besides: bytes that will be allocated later, in addition to the model's.

    Raises `InfrastructureError` as `require_room` does.
    """
    if device.type == "cuda":
        tensors = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
        free, total = torch.cuda.mem_get_info(device)
        reading = MemoryReading(torch.cuda.get_device_name(device), free, total)
        require_room(role, sum(tensors.values()) + besides, reading)
    return model.to(device)


def require_room(role: str, needed: int, reading: MemoryReading) -> None:
    """Raises `InfrastructureError` if a GPU has fewer bytes free than needed.

    role: what needs the memory, such as `the trainer`.
    """
    if needed > reading.free:
        raise InfrastructureError(
            f"{role} needs {needed / GIB:.1f} GiB on the {reading.name}, but only {reading.free / GIB:.1f} of its"
            f" {reading.total / GIB:.1f} GiB are free; stop the other processes that use it (nvidia-smi lists them),"
            " or give the run more devices"
        )


def on_cores(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors, one at a time, where numpy can read them: CPU tensors as they are, GPU tensors as copies."""
    return ((name, tensor.cpu()) for name, tensor in tensors.items())
