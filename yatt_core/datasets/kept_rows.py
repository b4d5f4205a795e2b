"""Rows of a source that are read once and passed over several times: the later passes read what the first has put aside.

Consumes a function that reads the rows. Produces the same rows on every pass. What is put aside is in a temporary file without a
name, in the interpreter's own format for plain values, and is gone with the process. Rows of other values, or too many, are
read again.
"""

from __future__ import annotations

import marshal
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from yatt_core.datasets.rows import Row

LARGEST_BYTES = 1 << 30
"""Maximum size of what is put aside of a source."""
BLOCK_BYTES = 1 << 18
"""Size from which on rows are written together."""
_SIZE = struct.Struct("<Q")


class KeptRows:
    """The rows of a source.

    read: reads all rows from the beginning.
    """

    def __init__(self, read: Callable[[], Iterator[Row]]) -> None:
        self._read = read
        self._kept: IO[bytes] | None = None
        self._fits = True

    def __iter__(self) -> Iterator[Row]:
        if self._kept is not None:
            return _rows(self._kept)
        return self._keeping() if self._fits else self._read()

    def _keeping(self) -> Iterator[Row]:
        """Yields the rows, and puts them aside if all of them are read."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when nothing refers to it
        block: list[bytes] = []
        size = 0
        for row in self._read():
            if self._fits:
                packed = _packed(row)
                self._fits = packed is not None
                block.append(packed or b"")
                size += len(packed or b"")
                if size >= BLOCK_BYTES:
                    self._fits = self._fits and _put(file, block)
                    block = []
                    size = 0
            yield row
        self._fits = self._fits and _put(file, block)
        if self._fits:
            self._kept = file


def _packed(row: Row) -> bytes | None:
    """Returns a row as bytes; None for one that is not of plain values."""
    if row.messages or row.reply or row.tools:
        return None
    values = row.origin, row.text, row.answer, dict(row.entry), row.media, row.other_answers, row.rendered
    try:
        return marshal.dumps(values)
    except ValueError:  # a number that remembers how it was written
        return None


def _put(file: IO[bytes], block: Sequence[bytes]) -> bool:
    """Appends rows to a file. Returns False if the disk is full, or if they are too many."""
    data = marshal.dumps(list(block))
    try:
        file.write(_SIZE.pack(len(data)))
        file.write(data)
    except OSError:
        return False
    return file.tell() <= LARGEST_BYTES


def _rows(file: IO[bytes]) -> Iterator[Row]:
    place = 0
    while True:
        file.seek(place)
        header = file.read(_SIZE.size)
        if not header:
            return
        (size,) = _SIZE.unpack(header)
        block = marshal.loads(file.read(size))
        place = file.tell()
        for packed in block:
            origin, text, answer, entry, media, others, rendered = marshal.loads(packed)
            yield Row(origin, text, answer, entry, media, other_answers=others, rendered=rendered)
