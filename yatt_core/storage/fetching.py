"""Allows only one fetch into a run's folder at a time, across processes and threads.

Consumes the run's folder, in which a file is locked. A process that had to wait finds what the earlier one fetched;
a sweep can tell whether a folder with the suffix `FETCHED` is still being filled.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from yatt_core.file_lock import file_lock

FETCHED = ".fetched"
_LOCK = ".fetching"


def partial_of(target: Path) -> Path:
    """Returns the path at which a folder is assembled before it is moved into place."""
    return target.with_name(f".{target.name}{FETCHED}")


def fetching(run_folder: Path, wait: bool = True) -> AbstractContextManager[bool]:
    """Locks out other fetches; yields False if one is in progress and `wait` is False."""
    return file_lock(run_folder / _LOCK, wait)
