"""Keeps background threads out of Ray while the driver disconnects.

`ray.shutdown` destroys native objects of the connection. A call that another thread has in progress would use them
afterwards and end the process with SIGSEGV, or without a word with exit code 1, so a disconnect waits for calls of
background threads, and none begins meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from yatt_core.errors import InfrastructureError

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
    """Waits until the calls of background threads have returned, and lets none begin until the block ends."""
    global _disconnects
    with _changed:
        _disconnects += 1
        while _calls:
            _changed.wait()
    try:
        yield
    finally:
        with _changed:
            _disconnects -= 1
