"""What a process does first as a rank of the trainer: one thread, memory that is kept, a device that repeats its bits."""

from __future__ import annotations

import torch

from yatt_core.engines.device import own_device, repeat_bits
from yatt_core.engines.host_memory import keep_freed_memory
from yatt_core.spec.run import RunSpec


def rank_device(spec: RunSpec) -> torch.device:
    """Prepares this process for a rank, and returns its device."""
    torch.set_num_threads(1)
    keep_freed_memory()
    device = own_device()
    if spec.is_exact:
        repeat_bits(device)
    return device
