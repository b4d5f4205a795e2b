"""Files that a row of a dataset names: only regular ones within a folder.

Consumes a folder and a name. Produces bytes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from yatt_core.errors import DataError


def read_within(folder: Path, name: str, most: int) -> bytes:
    """Returns the bytes of a regular file in or below a folder.

    most: maximum size of the file in bytes.

    Raises `DataError` for any other file, and for one that cannot be read. A name must not lead out of the
    folder; a symbolic link inside it may, as in the caches of model hubs, because it was put there by the
    folder's owner.
    """
    path = folder / name
    try:
        if not Path(os.path.normpath(path)).is_relative_to(os.path.normpath(folder)):
            raise DataError(f"{path} cannot be read: it is outside of {folder}; move it into that folder")
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise DataError(f"{path} cannot be read: not a regular file")
        if facts.st_size > most:
            raise DataError(f"{path} cannot be read: it has {facts.st_size:,} bytes; the maximum is {most:,}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
