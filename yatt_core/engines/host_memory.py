"""Freed memory of a process that computes on CPU cores: kept for the next tensor, and given back on demand.

By default the C library maps every large tensor separately and unmaps it when it is freed; the kernel then
zeroes each page at first use, which costs more than the arithmetic in a training step of small tensors.
Without glibc, nothing is changed.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress

# Parameters of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENAS = -8

LARGEST_KEPT = 1 << 28
"""Tensors of at least this many bytes are not kept."""
LARGEST_OF_OLD = 1 << 25
"""The largest such limit that glibc accepted before 2022."""
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


def large_pages(nbytes: int) -> mmap.mmap:
    """Returns zeroed memory of this process, in pages of megabytes where the kernel has them.

    The kernel finds a page at its first use, which for small pages takes longer than a copy of what is written to them.
    """
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "mallopt") else None
