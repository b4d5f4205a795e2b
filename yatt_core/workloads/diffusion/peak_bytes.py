"""How many bytes of tensors exist at once while some code runs, found from shapes alone.

Consumes code that runs in torch's FakeTensorMode, in which tensors have shapes and no numbers. Produces the peak of the storages
that the code has made. What a processor's libraries take within an operation is not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages from the operation that makes them until nothing refers to them; not those that were there before.

    peak: the most bytes that there were at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak: int = 0
        self._held: int = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs an operation; what it is given and no operation has made was there before."""
        named = kwargs or {}
        tree_map_only(torch.Tensor, self._meet, (args, dict(named)))
        found = func(*args, **named)
        tree_map_only(torch.Tensor, self._count, found)
        return found

    def _meet(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage not in self._known:
            self._known[storage] = None
        return tensor

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage not in self._known:
            self._known[storage] = None
            size = storage.nbytes()
            self._held += size
            self.peak = max(self.peak, self._held)
            weakref.finalize(storage, self._forget, size).atexit = False
        return tensor

    def _forget(self, size: int) -> None:
        self._held -= size
