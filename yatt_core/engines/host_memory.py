"""Freed memory of a process that computes on cores: kept for the next tensor, and given back on demand.

By default the C library maps every large tensor anew and unmaps it when it is freed; the kernel then zeroes each of its pages at
first use, which in a training step of small tensors costs more than the arithmetic on them. Where there is no glibc, nothing is
changed.
"""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS = -1, -3, -8

LARGEST_KEPT = 1 << 28
"""Bytes of a tensor from which on it is mapped and unmapped by itself."""
LARGEST_OF_OLD = 1 << 25
"""The same for a C library of before 2022, which refuses more."""
MOST_KEPT = 1 << 29
"""Free bytes at the end of the heap from which on they are given back."""


def keep_freed_memory() -> None:
    """From now on freed tensors' memory serves the next ones of this process."""
    if library := _glibc():
        if not library.mallopt(_MMAP_THRESHOLD, LARGEST_KEPT):
            library.mallopt(_MMAP_THRESHOLD, LARGEST_OF_OLD)
        library.mallopt(_TRIM_THRESHOLD, MOST_KEPT)
        # Heaps of other threads are mappings of 64 MiB, which come and go likewise.
        library.mallopt(_ARENAS, 1)


def give_back_freed_memory() -> None:
    """Lets other processes have what is kept."""
    if library := _glibc():
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "mallopt") else None
