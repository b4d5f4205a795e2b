"""The lock of a file, which one process of this host holds at a time; the system gives it back when the process ends.

Consumes a path; creates the file, which stays empty.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yatt_core.durable import refusals


@contextmanager
def file_lock(path: Path, wait: bool = False) -> Iterator[bool]:
    """Yields True while this process holds the lock, or False if another one does.

    wait: until the other process gives it back.

    Raises `InfrastructureError` if the file cannot be created.
    """
    with refusals(f"{path}: cannot be locked"):
        lock = path.open("a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
