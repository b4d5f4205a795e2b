"""JSON files in UTF-8: one object per line, or what `json_documents` reads.

Consumes a file, which may be compressed. Produces its objects, and a `DataError` with file and line for each line that is
not an object, so that the caller can report several. Raises `ConfigurationError` for a file that cannot be opened.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from yatt_core.datasets.content import opened
from yatt_core.datasets.json_containers import rows_in
from yatt_core.datasets.json_documents import Entry, checked_row, read_documents
from yatt_core.datasets.limits import MAX_ROW_BYTES, bounded_lines
from yatt_core.errors import DataError
from yatt_core.json_text import DECODER, check_text

Line = tuple[int, bytes]


def read_objects(path: Path, keys: Collection[str] = ()) -> Iterator[tuple[int, Entry]]:
    """Yields the number (from 1) and the object of each row, or what is wrong with it; skips blank lines.

    keys: keys of which a row has at least one; a file's only object that has none of them may contain the rows.

    The number is that of the line if there is one object per line, otherwise that of the row.
    """
    with opened(path) as stream:
        first = b""
        number = 0
        while not first.strip():
            first = stream.readline(MAX_ROW_BYTES + 1)
            number += 1
            if not first:
                return
        if _begins_a_document(first):
            yield from read_documents(path=path, ahead=first, stream=stream, keys=keys, line=number)
            return
        if len(first) > MAX_ROW_BYTES:
            raise DataError(f"{path}:{number}: the line is longer than {MAX_ROW_BYTES:,} bytes, the maximum")
        following = enumerate(bounded_lines(path, stream, number), start=number + 1)
        second = next(((at, line) for at, line in following if line.strip()), None)
        if second is None and (rows := _rows_of(path, first, keys)) is not None:
            yield from ((at, _checked(row, f"{path}:{at}")) for at, row in enumerate(rows, start=1))
            return
        lines = itertools.chain([(number, first)], [] if second is None else [second], following)
        yield from _objects(path, lines)


def _begins_a_document(line: bytes) -> bool:
    """Returns True if a file's first line does not end with its first value, or if it begins a list."""
    start = line.lstrip()[:1]
    if start == b"[" or (start == b"{" and len(line) > MAX_ROW_BYTES):
        return True
    if start != b"{":
        return False
    text = line.decode("utf-8", errors="replace").rstrip()
    try:
        DECODER.decode(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text)
    except (ValueError, RecursionError):
        return False
    return False


def _rows_of(path: Path, line: bytes, keys: Collection[str]) -> list[Any] | None:
    """Returns the rows in a file's only line; None if it is a row itself, or not an object."""
    try:
        row = _parse(line, str(path))
    except DataError:
        return None
    return rows_in(path, row, keys)


def _objects(path: Path, lines: Iterable[Line]) -> Iterator[tuple[int, Entry]]:
    for number, line in lines:
        if line.strip():
            try:
                entry: Entry = _parse(line, f"{path}:{number}")
            except DataError as error:
                entry = error
            yield number, entry


def _parse(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = DECODER.decode(line.decode("utf-8"))
        if b"\\u" in line:  # nothing else can make a lone surrogate, and the check takes as long as the parsing
            check_text(row)
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: is not UTF-8 ({error.reason} at byte {error.start} of the line)") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: is not a JSON object on one line: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected a JSON object, not {type(row).__name__}")
    return row


def _checked(row: Any, place: str) -> Entry:
    try:
        return checked_row(row, place)
    except DataError as error:
        return error
