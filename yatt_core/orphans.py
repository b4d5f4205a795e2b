"""Ends processes that user code has left behind, even in their own group or session. Linux only.

Consumes the calling process's children: a process that has called `adopt_orphans` also gets those of its descendants
whose parents have ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None)
SIGNALS = {number.value: number.name for number in signal.Signals}
"""Signal names by number; real-time signals have only a number."""


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parents have ended."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Makes this process end when the process that started it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_children() -> None:
    """Ends all children of this process, and those that it adopts meanwhile. Fast if there are none."""
    # Processes of other users cannot be ended.
    with suppress(ChildProcessError, psutil.AccessDenied):
        while True:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                for orphan in psutil.Process().children():
                    orphan.kill()
                os.waitpid(-1, 0)


def death(status: int) -> str:
    """Describes the end of a process from its wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"its process was ended by {SIGNALS.get(number, f'signal {number}')}"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"
