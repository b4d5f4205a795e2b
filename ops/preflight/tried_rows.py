"""Remembers which rows have been tried and found sound, so that the next check need not try them again.

Consumes digests of what was tried. Produces whether it was. One line of a file in the home folder is one digest; the file may
be deleted at any time, and begins anew when it has become large.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

VERSION = 1
"""Of the checks: another version has a file of its own."""
CHARACTERS = 32
"""Length of a digest as it is kept: 128 bits."""
MOST_BYTES = 64 << 20
_LOGGER = logging.getLogger(__name__)


class TriedRows:
    """The rows that were found sound.

    folder: `checks` in the home folder; it is made when there is something to keep.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"rows-{VERSION}.txt"
        self._known: set[str] | None = None

    def knows(self, digest: str) -> bool:
        """Returns whether what has this digest (sha256 in hexadecimal) was found sound."""
        if self._known is None:
            self._known = self._read()
        return digest[:CHARACTERS] in self._known

    def keep(self, digests: Iterable[str]) -> None:
        """Keeps digests. A file that cannot be written is a warning: the rows are only tried again."""
        short = [digest[:CHARACTERS] for digest in digests]
        if not short:
            return
        if self._known is not None:
            self._known.update(short)
        lines = "".join(f"{digest}\n" for digest in short).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Several checks may append at once; a line that is torn or mixed with another is no digest of any row.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(descriptor, lines)
            finally:
                os.close(descriptor)
        except OSError as error:
            _LOGGER.warning("%s cannot be written: %s; these rows will be tried again", self._path, error.strerror)

    def _read(self) -> set[str]:
        try:
            if self._path.stat().st_size > MOST_BYTES:
                self._path.unlink()
            lines = self._path.read_bytes().decode("ascii", "replace").split("\n")
        except OSError:
            return set()
        return {line for line in lines if len(line) == CHARACTERS}
