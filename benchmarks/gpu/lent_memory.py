"""Host memory in place of the memory of a GPU that a process lends to others, for machines without a GPU.

Consumes the buffers that the product would lend. Produces descriptions of memory without a name in any folder, which a borrower
maps. As on a GPU, the same memory has what a buffer holds the next time that it is lent.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import IO

import numpy as np
import torch

FILES: dict[int, IO[bytes]] = {}
"""The memory that stands for each buffer, by the buffer's address."""


def lend_host_memory() -> None:
    """Has this process lend such memory, and borrow that of others, from now on."""
    from yatt_core.engines import device_memory

    vars(device_memory).update(lent=lent, borrowed=borrowed)


def lent(buffer: torch.Tensor) -> bytes:
    """Stands for `device_memory.lent`."""
    if buffer.data_ptr() not in FILES:
        FILES[buffer.data_ptr()] = os.fdopen(os.memfd_create("yatt-lent"), "r+b", buffering=0)
    file = FILES[buffer.data_ptr()]
    file.seek(0)
    file.write(buffer.numpy().data)
    return f"/proc/{os.getpid()}/fd/{file.fileno()} {buffer.numel()}".encode()


def borrowed(description: bytes, device: torch.device) -> torch.Tensor:
    """Stands for `device_memory.borrowed`."""
    path, size = description.decode().split()
    with Path(path).open("r+b") as file:
        return torch.from_numpy(np.frombuffer(mmap.mmap(file.fileno(), int(size)), np.uint8)).to(device)
