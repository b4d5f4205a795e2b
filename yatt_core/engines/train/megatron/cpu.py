"""Lets Megatron-Core train on a CPU. Does nothing if there is a GPU, and leaves nothing behind outside its context.

Megatron-Core 0.16 names the GPU in places that its settings do not reach: as the device of small tensors, in
`Tensor.cuda`, in comparisons with the names of CUDA's tensor types, and where it keeps random number
generators. All of these are redirected to the CPU here, and nowhere else.
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
    """Makes Megatron-Core run on this process's device; wrap every use of it, imports included.

    Use it on one thread at a time: the torch function mode belongs to the thread, but the replaced attributes
    belong to the process.
    """
    if torch.cuda.is_available():
        yield
        return
    with ExitStack() as stack:
        # Compiling its small helpers at first call takes longer than training a small model.
        stack.enter_context(exchanged(torch, "compile", _uncompiled))
        from megatron.core.tensor_parallel import random

        for owner, name, value in (
            (torch.cuda, "current_device", lambda: "cpu"),
            (torch.cuda, "synchronize", lambda *_: None),
            (torch.cuda, "manual_seed", torch.manual_seed),
            (torch.cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state()),
            (random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state()),
            (random, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state)),
            # Every recomputation would warn that the CPU's generator advanced, which here is also the GPU's generator.
            (logging.getLogger(random.__name__), "disabled", True),
        ):
            stack.enter_context(exchanged(owner, name, value))
        stack.enter_context(_OnCpu())
        yield


@contextmanager
def exchanged(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces an attribute within the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _uncompiled(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    return function if function is not None else _uncompiled


class _OnCpu(TorchFunctionMode):
    """Redirects CUDA requests to the CPU."""

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
