"""Keeps background threads out of Ray while the driver disconnects.

`ray.shutdown` destroys native objects of the connection. A call that another thread has in progress would use them
afterwards and end the process with SIGSEGV, or without a word with exit code 1, so a disconnect waits for calls of
background threads, and none begins meanwhile.

A reference to a result calls Ray too, when it is deleted. Those in cyclic garbage, such as the frames of an exception that was
handled, are deleted by whichever thread happens to collect it; so garbage is collected before a disconnect, and by nobody
during it. Threads that hold references delete them while they hold off a disconnect.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from yatt_core.errors import InfrastructureError

COLLECTING_SECONDS = 0.001
"""How long to leave a collection of another thread alone before looking again whether it is over."""

_changed = threading.Condition()
_calls = 0
_disconnects = 0


@contextmanager
def calling_ray() -> Iterator[None]:
    """Holds off a disconnect during a short call of a background thread.

    Raises `InfrastructureError` if there is no connection, or it is being ended: Ray would start a cluster of its own.
    """
    import ray

    global _calls
    with _changed:
        if _disconnects or not ray.is_initialized():
            raise InfrastructureError("there is no connection to the cluster")
        _calls += 1
    try:
        yield
    finally:
        with _changed:
            _calls -= 1
            _changed.notify_all()


@contextmanager
def no_calls() -> Iterator[None]:
    """Waits until the calls of background threads have returned, and lets none begin until the block ends.

    No thread collects garbage meanwhile.
    """
    global _disconnects
    with _changed:
        _disconnects += 1
        while _calls:
            _changed.wait()
    gc.disable()
    try:
        collect_garbage()
        yield
    finally:
        with _changed:
            _disconnects -= 1
            if not _disconnects:
                gc.enable()


class _Garbage:
    """An object that only a collection deletes."""

    def __init__(self) -> None:
        self.itself = self


def collect_garbage() -> None:
    """Collects all garbage; a collection that another thread has begun is waited for first."""
    while True:
        collected = weakref.ref(_Garbage())
        gc.collect()  # does nothing while another thread collects
        if collected() is None:
            return
        time.sleep(COLLECTING_SECONDS)
