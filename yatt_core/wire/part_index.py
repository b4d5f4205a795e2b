"""The index of a rank's files of tensor parts: their headers, and a sha256 of each block of their parts.

Consumes headers and parts as they are written. Produces a file with which single blocks of the others can be found and
verified: a reader on another node then needs no whole file. It is a safetensors file: its metadata contain the headers,
its tensors the digests, a row a block. A block never extends over two parts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from yatt_core.errors import DataError

SUFFIX = ".index"
BLOCKS = 128
UNIT = 4096
"""A part has at most `BLOCKS` blocks, of a multiple of `UNIT` bytes; the last one may be smaller."""
DIGEST_BYTES = 32

Span = tuple[int, int]
"""First byte in a file and the byte after the last one."""


def block_bytes(size: int) -> int:
    """Returns the size of the blocks of a part of `size` bytes."""
    return max(1, -(-size // (BLOCKS * UNIT))) * UNIT


def blocks_of(start: int, size: int) -> Iterator[Span]:
    """Yields the blocks of a part.

    start: its first byte in the file.
    size: its bytes.
    """
    step = block_bytes(size)
    for first in range(start, start + size, step):
        yield first, min(first + step, start + size)


class IndexBuilder:
    """Collects what an index says about the files of one rank."""

    def __init__(self) -> None:
        self._headers: dict[str, str] = {}
        self._digests: dict[str, bytearray] = {}

    def begin(self, name: str, header: bytes) -> None:
        """Begins a file. header: its header without the length that precedes it."""
        self._headers[name] = header.decode("ascii")
        self._digests[name] = bytearray()

    def add(self, name: str, part: memoryview) -> None:
        """Adds the next part of a file."""
        for first, last in blocks_of(0, len(part)):
            self._digests[name] += hashlib.sha256(part[first:last]).digest()

    def encode(self) -> bytes:
        """Returns the index."""
        header = dict[str, object]()
        at = 0
        for name, digests in self._digests.items():
            shape = [len(digests) // DIGEST_BYTES, DIGEST_BYTES]
            header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [at, at + len(digests)]}
            at += len(digests)
        text = json.dumps({"__metadata__": self._headers, **header}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + b"".join(self._digests.values())


class PartIndex:
    """An index that was read; digests are read when they are asked for.

    headers: the header of each file, by its name.
    """

    def __init__(self, path: Path) -> None:
        """Raises `DataError` if the file is not an index."""
        self._path = path
        try:
            with path.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                found = json.loads(stream.read(min(length, path.stat().st_size)))
            headers: Mapping[str, str] = found.pop("__metadata__")
            self.headers = {str(name): text.encode("ascii") for name, text in headers.items()}
            self._places = {
                name: (8 + length + first, last - first)
                for name, (first, last) in ((name, found[name]["data_offsets"]) for name in self.headers)
            }
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: is not an index of tensor parts: {error!r}") from error

    def digests(self, name: str) -> list[bytes]:
        """Returns the sha256 of each block of a file, in the order of the blocks."""
        first, size = self._places[name]
        with self._path.open("rb", buffering=0) as stream:
            data = os.pread(stream.fileno(), size, first)
        return [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]
