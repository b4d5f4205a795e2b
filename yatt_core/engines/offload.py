"""Offloads a role's tensors while other roles use the device: tensors needed again move to the host, the rest is freed.

Consumes tensors and works on their storage, so that views and references stay valid: offloaded tensors are
empty, and have their contents again afterwards. Storage in host memory stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import torch


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The device memory held by a role.

    lasting: tensors whose contents are needed again, bit for bit.
    passing: tensors that must exist again, but whose contents do not matter.
    """

    lasting: tuple[torch.Tensor, ...]
    passing: tuple[torch.Tensor, ...] = ()


def together(*parts: HeldMemory) -> HeldMemory:
    """Combines what several roles hold."""
    lasting = chain.from_iterable(part.lasting for part in parts)
    return HeldMemory(tuple(lasting), tuple(chain.from_iterable(part.passing for part in parts)))


class Offloaded:
    """Tensors that are offloaded until `bring_back`. They must not be used meanwhile."""

    def __init__(self, held: HeldMemory) -> None:
        lasting = _memories(held.lasting)
        passing = _memories(held.passing)
        self._copies = [(memory, _to_host(memory)) for memory in lasting.values() if is_on_device(memory)]
        self._dropped = [(memory, memory.nbytes()) for place, memory in passing.items() if place not in lasting]
        for memory, _ in [*self._copies, *self._dropped]:
            memory.resize_(0)
        # Other processes cannot use freed memory that torch caches. This does nothing without a GPU.
        torch.cuda.empty_cache()

    @torch.no_grad()
    def bring_back(self) -> None:
        """Restores the lasting tensors bit for bit and the passing ones as zeros."""
        for memory, copy in self._copies:
            memory.resize_(copy.numel())
            _bytes_of(memory).copy_(copy)
        for memory, size in self._dropped:
            memory.resize_(size)
            _bytes_of(memory).zero_()
        self._copies = []
        self._dropped = []


def is_on_device(memory: torch.UntypedStorage) -> bool:
    """Returns True if memory belongs to an accelerator."""
    return memory.device.type != "cpu"


def _memories(tensors: Iterable[torch.Tensor]) -> dict[tuple[str, int], torch.UntypedStorage]:
    """Returns the storages of tensors, each storage once, by location."""
    memories = (tensor.untyped_storage() for tensor in tensors)
    return {(str(memory.device), memory.data_ptr()): memory for memory in memories if memory.nbytes()}


def _bytes_of(memory: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory)


@torch.no_grad()
def _to_host(memory: torch.UntypedStorage) -> torch.Tensor:
    """Copies to host memory that a GPU can access at full speed."""
    copy = torch.empty(memory.nbytes(), dtype=torch.uint8, pin_memory=memory.device.type == "cuda")
    return copy.copy_(_bytes_of(memory))
