"""Makes paths read-only, even for root, whose capability to override permissions is dropped meanwhile."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

CAPABILITY_VERSION_3 = 0x20080522
PASSES_OVER_PERMISSIONS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def read_only(*paths: Path) -> Iterator[None]:
    """Lets this thread, and threads it starts, read the files and folders but not write them."""
    modes = [path.stat().st_mode for path in paths]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # Effective, permitted, inheritable: of the first 32 capabilities, then of the others.
    held = (ctypes.c_uint32 * 6)()
    fewer = (ctypes.c_uint32 * 6)()
    _checked(_libc.capget(header, held))
    fewer[:] = held[:]
    fewer[0] &= ~PASSES_OVER_PERMISSIONS
    _checked(_libc.capset(header, fewer))
    try:
        # By default, access() judges by the real user and all permitted capabilities, not by the effective ones.
        with mock.patch.object(os, "access", partial(os.access, effective_ids=True)):
            yield
    finally:
        _checked(_libc.capset(header, held))
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)


def _checked(answer: int) -> None:
    if answer != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
