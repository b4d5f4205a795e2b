"""What a data file really is: opens texts, unpacks gzip and zstd within bounds, and names what is no data.

Consumes a path. Produces a stream of bytes without a byte order mark. Raises `ConfigurationError` for a file that cannot be
opened, and `DataError` for one that is damaged, is something else than its name says, or unpacks to too much.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from yatt_core.datasets.limits import check_unpacked
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.regular_files import check_regular

HEAD_BYTES = 4096
BUFFER_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
COMPRESSED = (".gz", ".zst")
"""Endings of the names of compressed files."""
POINTER = (b"version https://git-lfs", b"version https://hawser")
KNOWN = {
    b"PAR1": "a Parquet file; use a source of kind parquet",
    b"ARROW1": "an Arrow file (Feather); write the rows as Parquet or JSON Lines",
    b"\xff\xff\xff\xff": "an Arrow stream; use a source of kind huggingface with the path of its folder",
    b"PK\x03\x04": "a ZIP archive (as are Excel, NumPy and PyTorch files); unpack it, or write the rows as JSON Lines",
    b"BZh": "compressed with bzip2; unpack it, or compress it with gzip or zstd",
    b"\xfd7zXZ": "compressed with xz; unpack it, or compress it with gzip or zstd",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"SQLite format 3": "an SQLite database; write its rows as JSON Lines",
    b"\x93NUMPY": "a NumPy array; write the rows as JSON Lines",
    b"\x89HDF": "an HDF5 file; write the rows as JSON Lines",
    b"Obj\x01": "an Avro file; write the rows as JSON Lines",
    b"%PDF": "a PDF document; expected rows",
    b"\x89PNG": "an image; expected rows",
    b"\xff\xd8\xff": "an image; expected rows",
    b"\x7fELF": "a program; expected rows",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8",
}
"""Beginnings of files that are no text in UTF-8, and what to do with them."""
PICKLE = "a Python pickle, which is not loaded because it can run code; write the rows as JSON Lines or Parquet"
_TEXT_PICKLES = (b"(lp", b"(dp", b"ccopy_reg", b"cpandas", b"cnumpy", b"ccollections")
_PICKLE_PROTOCOLS = range(2, 6)


def ending(path: Path) -> str:
    """Returns the ending of a file's name in lower case, without that of a compressed file."""
    packed = path.suffix.lower() in COMPRESSED
    return (path.with_suffix("") if packed else path).suffix.lower()


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Opens a text file, which may be compressed; for the time that the caller reads it, names the file in errors."""
    check_regular(path, "data.sources")
    with ExitStack() as stack:
        try:
            stream: IO[bytes] = stack.enter_context(path.open("rb", buffering=BUFFER_BYTES))
            head = stream.read(HEAD_BYTES)
            stream.seek(0)
        except OSError as error:
            raise ConfigurationError(f"data.sources: {path} cannot be read: {error.strerror}") from None
        try:
            if head.startswith((GZIP, ZSTD)):
                unpacking = gzip.GzipFile(fileobj=stream) if head.startswith(GZIP) else _zstd(path)
                stream = io.BufferedReader(_Bounded(path, stack.enter_context(unpacking)), BUFFER_BYTES)
                head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
            _check_head(path, head)
            if head.startswith(BYTE_ORDER_MARK):
                stream.read(len(BYTE_ORDER_MARK))
            yield stream
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read: {error}") from None


def check_table(path: Path) -> None:
    """Raises `DataError` for a file that is named like a table, but is something else that is known."""
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if not head.startswith((b"PAR1", b"\xff\xff\xff\xff")) and (found := _known(head)):
        raise DataError(f"{path}: is {found}")


def _zstd(path: Path) -> Any:
    return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")


def _check_head(path: Path, head: bytes) -> None:
    found = _known(head)
    if found is None and head[257:262] == b"ustar":
        found = "a tar archive; unpack it"
    if found is None and b"\0" in head:
        found = "a binary file, or text that is not UTF-8; expected text in UTF-8"
    if found is not None:
        raise DataError(f"{path}: is {found}")


def _known(head: bytes) -> str | None:
    """Returns what a file is that begins so, and what to do with it; None if it may be data."""
    if head.startswith(POINTER):
        return "a pointer of Git LFS, not the file that it stands for; run `git lfs pull` in its repository"
    start = head.removeprefix(BYTE_ORDER_MARK).lstrip()[:64].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head")):
        return "an HTML page, such as a download without a login leaves; download the file itself"
    if start.startswith(b"<?xml"):
        return "an XML document; write the rows as JSON Lines"
    if head.startswith(_TEXT_PICKLES) or (head[:1] == b"\x80" and len(head) > 1 and head[1] in _PICKLE_PROTOCOLS):
        return PICKLE
    return next((what for beginning, what in KNOWN.items() if head.startswith(beginning)), None)


class _Bounded(io.RawIOBase):
    """The unpacked bytes of a file, which are refused once they are too many."""

    def __init__(self, path: Path, stream: Any) -> None:
        self._path = path
        self._stream = stream
        self._stored = path.stat().st_size
        self._unpacked = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, as `io.RawIOBase` describes."""
        data = self._stream.read(len(buffer))
        self._unpacked += len(data)
        check_unpacked(self._path, self._unpacked, self._stored)
        buffer[: len(data)] = data
        return len(data)
