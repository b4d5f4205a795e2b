"""Rows of a source that are read once and passed over several times: the later passes read what the first has put aside.

Consumes a function that reads the rows. Produces the same rows on every pass. What is put aside is in a temporary file without a
name, as pickles that only this process can reach, and is gone with the process. Too many rows are read again.
"""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

from yatt_core.datasets.rows import Row

LARGEST_BYTES = 1 << 30
"""Maximum size of what is put aside of a source."""
BLOCK_BYTES = 1 << 18
"""Size from which on rows are written together."""


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
        block = _Block()
        for row in self._read():
            if self._fits:
                block.add(row)
                if block.size >= BLOCK_BYTES:
                    self._fits = _put(file, block)
                    block = _Block()
            yield row
        self._fits = self._fits and _put(file, block)
        if self._fits:
            self._kept = file


class _Block:
    """Rows that are written together; what they have in common, such as their keys, is written once."""

    def __init__(self) -> None:
        self._stream = io.BytesIO()
        self._pickler = pickle.Pickler(self._stream, pickle.HIGHEST_PROTOCOL)

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self._stream.tell()

    @property
    def data(self) -> bytes:
        """The rows as bytes."""
        return self._stream.getvalue()

    def add(self, row: Row) -> None:
        """Appends a row."""
        self._pickler.dump(row)


def _put(file: IO[bytes], block: _Block) -> bool:
    """Appends rows to a file. Returns False if the disk is full, or if they are too many."""
    try:
        pickle.dump(block.data, file)
    except OSError:
        return False
    return file.tell() <= LARGEST_BYTES


def _rows(file: IO[bytes]) -> Iterator[Row]:
    place = 0
    while True:
        file.seek(place)  # another pass may have moved it
        try:
            data = pickle.load(file)
        except EOFError:
            return
        place = file.tell()
        stream = io.BytesIO(data)
        block = pickle.Unpickler(stream)
        while stream.tell() < len(data):
            yield block.load()
