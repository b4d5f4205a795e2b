"""One fetch into a run's folder at a time, whichever process or thread asks for it.

Consumes the run's folder, in which a file is locked. Whoever waited finds what the other has fetched; whoever sweeps learns
whether a folder with the ending `FETCHED` is still being filled.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FETCHED = ".fetched"
_LOCK = ".fetching"


def partial_of(target: Path) -> Path:
    """Where a folder is put together before it takes its place."""
    return target.with_name(f".{target.name}{FETCHED}")


@contextmanager
def fetching(run_folder: Path, wait: bool = True) -> Iterator[bool]:
    """Keeps other fetches out; False where one is under way and `wait` is not set."""
    with (run_folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
