"""Counts the memory that a runner of the torch rollout engine holds."""

from __future__ import annotations

from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.torch.module_runner import ModuleRunner
from yatt_core.engines.rollout.torch.runner import Runner


def held_bytes(runner: Runner) -> int:
    """Counts the bytes of keys and values."""
    if isinstance(runner, DenseRunner):
        return runner._prompts._buffer.nbytes + runner._own._buffer.nbytes
    assert isinstance(runner, ModuleRunner)
    return sum(buffer.nbytes for layer in runner._cache.layers for buffer in layer._buffers)
