"""Allows only one fetch into a run's folder at a time, across processes and threads.

Consumes the run's folder, in which a file is locked. A process that had to wait finds what the earlier one fetched;
a sweep can tell whether a folder with the suffix `FETCHED` is still being filled.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FETCHED = ".fetched"
_LOCK = ".fetching"


def partial_of(target: Path) -> Path:
    """Returns the path at which a folder is assembled before it is moved into place."""
    return target.with_name(f".{target.name}{FETCHED}")


@contextmanager
def fetching(run_folder: Path, wait: bool = True) -> Iterator[bool]:
    """Locks out other fetches; yields False if one is in progress and `wait` is False."""
    with (run_folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
