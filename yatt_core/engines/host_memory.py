"""Freed memory of a process that computes on CPU cores: kept for the next tensor, and given back on demand.

By default the C library maps every large tensor separately and unmaps it when it is freed; the kernel then
zeroes each page at first use, which costs more than the arithmetic in a training step of small tensors.
Without glibc, nothing is changed.
"""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS = -1, -3, -8

LARGEST_KEPT = 1 << 28
"""Tensors of at least this many bytes are still mapped and unmapped individually."""
LARGEST_OF_OLD = 1 << 25
"""As `LARGEST_KEPT`, for glibc before 2022, which refuses a larger value."""
MOST_KEPT = 1 << 29
"""When this many bytes are free at the end of the heap, they are given back."""


def keep_freed_memory() -> None:
    """Makes this process reuse the memory of freed tensors from now on."""
    if library := _glibc():
        if not library.mallopt(_MMAP_THRESHOLD, LARGEST_KEPT):
            library.mallopt(_MMAP_THRESHOLD, LARGEST_OF_OLD)
        library.mallopt(_TRIM_THRESHOLD, MOST_KEPT)
        # Heaps of other threads are mappings of 64 MiB, which are mapped and unmapped as well.
        library.mallopt(_ARENAS, 1)


def give_back_freed_memory() -> None:
    """Returns the kept memory to the operating system."""
    if library := _glibc():
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "mallopt") else None
