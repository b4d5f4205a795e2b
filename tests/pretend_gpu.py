"""A pretended GPU: tensors in host memory that claim to be on a GPU, which exposes device mix-ups without a real GPU.

Inside, torch computes as usual and refuses what it would refuse with a GPU: an operation on tensors of both devices,
and a NumPy view of a GPU tensor. It does not imitate a GPU's kernels: their rounding, speed and limits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from yatt_core.engines import device, offload
from yatt_core.engines.rollout.torch import engine as rollout_engine
from yatt_core.judges import reward_model

GPU = torch.device("cuda", 0)
HOST = torch.device("cpu")
MEMORY = 1 << 40
ATEN = torch.ops.aten
READS = (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.__bool__)
"""Operations, besides copies, with which a program waits for a tensor's values."""


class Pretence:
    """A record of the memory that is claimed to be on the GPU.

    transfers: number of transfers from the GPU to the host.
    """

    def __init__(self) -> None:
        # Weak references: a storage's address is not reused before the reference is gone.
        self._storages: dict[int, StorageWeakRef] = {}
        self.made_there = self.crossing = False
        self.transfers = 0

    def holds(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor claims to be on the GPU."""
        return self.holds_memory(tensor.untyped_storage())

    def holds_memory(self, memory: torch.UntypedStorage) -> bool:
        """Returns whether a storage claims to be on the GPU."""
        return memory._cdata in self._storages

    def mark(self, found: Any) -> Any:
        """Marks all tensors in a value as being on the GPU."""
        for each in _tensors(found):
            storage = each.untyped_storage()
            self._storages[storage._cdata] = StorageWeakRef(storage)
        return found


@contextmanager
def pretended(free: int = MEMORY) -> Iterator[Pretence]:
    """Lets engines find a GPU. free: bytes of free memory that its driver reports."""
    pretence = Pretence()
    with (
        mock.patch.object(rollout_engine, "own_device", lambda: GPU),
        mock.patch.object(device, "own_device", lambda: GPU),
        mock.patch.object(reward_model, "own_device", lambda: GPU),
        mock.patch.object(torch.cuda, "mem_get_info", lambda _: (free, MEMORY)),
        mock.patch.object(torch.cuda, "get_device_name", lambda _: "Pretence"),
        mock.patch.object(offload, "is_on_device", pretence.holds_memory),
        mock.patch.dict(os.environ),
        _Calls(pretence),
        _Operations(pretence),
    ):
        try:
            yield pretence
        finally:
            torch.use_deterministic_algorithms(False)
            torch.utils.deterministic.fill_uninitialized_memory = True


class _Operations(TorchDispatchMode):
    """Intercepts torch's operations, including backward passes: results are on the device of the operands."""

    def __init__(self, pretence: Pretence) -> None:
        super().__init__()
        self._pretence = pretence

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        pretence = self._pretence
        given = list(_tensors((args, kwargs)))
        there = [each for each in given if pretence.holds(each)]
        # Scalars may be on the host, except for the optimizer's kernel.
        strict = func is ATEN._fused_adamw_.default
        wrong = [each for each in given if not pretence.holds(each) and (each.dim() or strict)]
        if there and wrong and func is not ATEN.copy_.default:
            shapes = [list(each.shape) for each in wrong]
            raise RuntimeError(f"{func}: tensors on {GPU} and on the host, those of shapes {shapes}")
        found = func(*args, **(kwargs or {}))
        if func is ATEN.copy_.default or pretence.crossing:
            return found
        return pretence.mark(found) if there or (not given and pretence.made_there) else found


class _Calls(TorchFunctionMode):
    """Intercepts a program's calls of torch: tensors report their device and move between devices."""

    def __init__(self, pretence: Pretence) -> None:
        super().__init__()
        self._pretence = pretence

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        pretence = self._pretence
        kwargs = dict(kwargs or {})
        held = any(pretence.holds(each) for each in _tensors((args, kwargs)))
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU if held else func(*args)
        pretence.transfers += held and func in READS
        if func is torch.Tensor.numpy and held:
            raise TypeError(f"numpy cannot view a tensor on {GPU}")
        if func in (torch.Tensor.to, torch.Tensor.cpu):
            target, args, kwargs = _target(func, args, kwargs)
            if target is not None and (target.type == GPU.type) != held:
                args = (self._moved(args[0], target), *args[1:])
            return args[0].to(*args[1:], **kwargs)
        there = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == GPU.type
        before = pretence.made_there
        pretence.made_there = held or there
        try:
            found = func(*args, **(kwargs | {"device": HOST} if there else kwargs))
        finally:
            pretence.made_there = before
        return pretence.mark(found) if there else found

    def _moved(self, tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
        """Copies a tensor to the other device; gradients flow back through the copy."""
        pretence = self._pretence
        pretence.crossing = True
        try:
            copy = tensor.clone()
        finally:
            pretence.crossing = False
        if target.type == GPU.type:
            return pretence.mark(copy)  # type: ignore[no-any-return]
        pretence.transfers += 1
        return copy


def _target(func: Any, args: Any, kwargs: Any) -> tuple[torch.device | None, Any, Any]:
    """Returns the target device, if the call names one, and the call's arguments with the host as device."""
    if func is torch.Tensor.cpu:
        return HOST, (args[0], HOST), {}
    named = [each for each in (*args[1:], kwargs.get("device")) if isinstance(each, torch.device | str)]
    stays = tuple(HOST if isinstance(each, torch.device | str) else each for each in args)
    others = {name: HOST if name == "device" else value for name, value in kwargs.items()}
    return torch.device(named[0]) if named else None, stays, others


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    return (each for each in tree_iter(found) if isinstance(each, torch.Tensor))
