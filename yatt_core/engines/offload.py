"""A role's tensors out of the way while others use the device: what it needs again goes to the host, the rest is given up.

Consumes tensors; works on the memory below them, so that views, and whoever holds them, stay valid: the tensors are empty while
they are away and the same ones afterwards. What lies in the host's memory already stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import torch


@dataclass(frozen=True, slots=True)
class Held:
    """What a role holds on. lasting: is needed again, bit for bit. passing: has to be there, whatever numbers are in it."""

    lasting: tuple[torch.Tensor, ...]
    passing: tuple[torch.Tensor, ...] = ()


def together(*parts: Held) -> Held:
    """What several hold."""
    lasting = chain.from_iterable(part.lasting for part in parts)
    return Held(tuple(lasting), tuple(chain.from_iterable(part.passing for part in parts)))


class Offloaded:
    """Tensors that are away until `bring_back`. Nobody may compute with them meanwhile."""

    def __init__(self, held: Held) -> None:
        lasting, passing = _memories(held.lasting), _memories(held.passing)
        self._copies = [(memory, _to_host(memory)) for memory in lasting.values() if is_on_device(memory)]
        self._dropped = [(memory, memory.nbytes()) for place, memory in passing.items() if place not in lasting]
        for memory, _ in [*self._copies, *self._dropped]:
            memory.resize_(0)
        # What torch keeps of freed memory, other processes cannot have; nothing on a machine without a GPU.
        torch.cuda.empty_cache()

    @torch.no_grad()
    def bring_back(self) -> None:
        """The lasting ones with the same bits, the passing ones as zeros."""
        for memory, copy in self._copies:
            memory.resize_(copy.numel())
            _bytes_of(memory).copy_(copy)
        for memory, size in self._dropped:
            memory.resize_(size)
            _bytes_of(memory).zero_()
        self._copies, self._dropped = [], []


def is_on_device(memory: torch.UntypedStorage) -> bool:
    """Whether memory is an accelerator's."""
    return memory.device.type != "cpu"


def _memories(tensors: Iterable[torch.Tensor]) -> dict[tuple[str, int], torch.UntypedStorage]:
    """The memory below tensors, each once, by where it lies."""
    memories = (tensor.untyped_storage() for tensor in tensors)
    return {(str(memory.device), memory.data_ptr()): memory for memory in memories if memory.nbytes()}


def _bytes_of(memory: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory)


@torch.no_grad()
def _to_host(memory: torch.UntypedStorage) -> torch.Tensor:
    """A copy, in memory that a GPU can copy from and to at its full speed."""
    copy = torch.empty(memory.nbytes(), dtype=torch.uint8, pin_memory=memory.device.type == "cuda")
    return copy.copy_(_bytes_of(memory))
