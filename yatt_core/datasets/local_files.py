"""Files that a spec or a row names: regular ones alone, so that no reading waits for a pipe or goes on for ever.

Consumes paths; produces bytes, or nothing where a file is merely looked at.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from yatt_core.errors import ConfigurationError, DataError


def check_regular(path: Path, key: str = "data.sources") -> None:
    """Raises `ConfigurationError` unless a path leads to a regular file. key: of the spec, which the message begins with."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"{key}: {path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise ConfigurationError(f"{key}: {path} cannot be read: it is no regular file")


def read_within(folder: Path, name: str, most: int) -> bytes:
    """The bytes of a regular file of a folder or below it, of at most so many bytes.

    Raises `DataError` for any other, and for one that cannot be read. A name must not lead out of the folder; a link in it
    may, as in the caches of model hubs: whoever laid the folder out put it there.
    """
    path = folder / name
    try:
        if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(folder)):
            raise DataError(f"{path} cannot be read: it leads out of {folder}; move it there or below")
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise DataError(f"{path} cannot be read: it is no regular file")
        if facts.st_size > most:
            raise DataError(f"{path} cannot be read: it has {facts.st_size:,} bytes, at most {most:,} are taken")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
