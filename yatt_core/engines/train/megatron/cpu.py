"""What lets Megatron-Core train on a CPU. Inert where there is a GPU; nothing of it is left behind when it is not entered.

Megatron-Core 0.16 names the GPU in places that its settings do not reach: as the device of small tensors, in `Tensor.cuda`, in
comparisons with the names of CUDA's tensor types, and where it keeps the generators of random numbers. All of these are answered
for the CPU here, and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def on_this_device() -> Iterator[None]:
    """Everything that Megatron-Core is asked for goes in here, its imports too; it holds for one thread's work at a time.

    The mode for functions of torch is this thread's alone, the exchanged attributes are the process's.
    """
    if torch.cuda.is_available():
        yield
        return
    with ExitStack() as stack:
        # Its small helpers are compiled when first called, for longer than a small model trains.
        stack.enter_context(_exchanged(torch, "compile", _uncompiled))
        from megatron.core.tensor_parallel import random

        for owner, name, value in (
            (torch.cuda, "current_device", lambda: "cpu"),
            (torch.cuda, "synchronize", lambda *_: None),
            (torch.cuda, "manual_seed", torch.manual_seed),
            (torch.cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state()),
            (random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state()),
            (random, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state)),
            # Says at every recomputation that the CPU's generator moved while the GPU's was in use: here they are one.
            (logging.getLogger(random.__name__), "disabled", True),
        ):
            stack.enter_context(_exchanged(owner, name, value))
        stack.enter_context(_OnCpu())
        yield


@contextmanager
def _exchanged(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _uncompiled(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    return function if function is not None else _uncompiled


class _OnCpu(TorchFunctionMode):
    """Answers for the CPU what is asked of CUDA."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if _names_cuda(given.get("device")):
            given["device"] = "cpu"
            given.pop("pin_memory", None)
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not given:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        return func(*args, **given)


def _names_cuda(device: Any) -> bool:
    return device == "cuda" or getattr(device, "type", None) == "cuda"
