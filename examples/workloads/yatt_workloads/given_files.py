"""Files that somebody else has written: whether they can be read at all, said with their path.

Consumes a path. Produces nothing, or a `ValueError` for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Surrounds what reads a file.

    Raises `ValueError` for a path that is no file, and in place of the system's errors; a pipe, which would never end, is none.
    """
    try:
        if not path.exists():
            raise ValueError(f"{path}: no such file")
        if not path.is_file():
            raise ValueError(f"{path}: is no regular file")
        yield
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from error
