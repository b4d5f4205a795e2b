"""Memory of a GPU that a process lends to others, which copy from it: CUDA's IPC, through torch.

Consumes buffers of the lender. Produces descriptions of them, small enough for a store or a pipe, with which a borrower on the
same GPU, or on one that can reach its memory, finds the same memory. The lender must keep a buffer, and leave it unchanged,
until every borrower has copied it (`wait_for`).
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.multiprocessing import reductions

IPC: Any = reductions
"""Torch's functions for this, which have no types."""
HANDLES = slice(7, 10)
"""The allocation's handle, the storage's size, and its offset, among torch's facts about a tensor on a GPU."""
COUNTERS = slice(11, 15)
"""What tells the lender's torch that a borrower is done, and when the buffer was written."""


def lent(buffer: torch.Tensor) -> bytes:
    """Returns the description of a flat buffer of bytes, once everything that this thread has queued for it has been done."""
    wait_for(buffer.device)
    _, facts = IPC.reduce_tensor(buffer)
    values = [buffer.numel(), buffer.storage_offset(), *facts[HANDLES], *facts[COUNTERS]]
    return json.dumps([{"hex": each.hex()} if isinstance(each, bytes) else each for each in values]).encode()


def borrowed(description: bytes, device: torch.device) -> torch.Tensor:
    """Returns the lender's buffer. device: the borrower's GPU, as this process numbers it."""
    values: list[Any] = json.loads(description)
    size, start, *facts = [bytes.fromhex(each["hex"]) if isinstance(each, dict) else each for each in values]
    handles = facts[:3]
    counters = facts[3:]
    flat = (torch.Tensor, (size,), (1,), start, torch.UntypedStorage, torch.uint8, device.index or 0)
    found: torch.Tensor = IPC.rebuild_cuda_tensor(*flat, *handles, False, *counters)
    return found


def wait_for(device: torch.device) -> None:
    """Waits until everything that this thread has queued on a GPU has been done; returns at once for cores."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
