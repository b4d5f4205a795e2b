"""JSON files that are not one object a line: a list, an object that has the rows, or objects over several lines.

Consumes a stream of bytes. Produces rows one at a time, with their number (from 1); of a file that is larger than a row
may be, only the current row is in memory. Raises `DataError`, and yields it for a row that cannot be used.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from yatt_core.datasets.json_containers import looks_like_message, rows_in, several_lists
from yatt_core.datasets.limits import MAX_ROW_BYTES, check_rows
from yatt_core.errors import DataError
from yatt_core.json_text import DECODER, check_text

Entry = dict[str, Any] | DataError
READ_BYTES = 1 << 20
LONGEST_ESCAPE = 16
"""More characters than a cut escape, word or number has, at the place of which the decoder reports an error."""
_SPACE = re.compile(r"[ \t\n\r]*")


class _MalformedError(Exception):
    """The text is not what is expected; nothing behind it can be read."""


class _LongError(_MalformedError):
    """A value is longer than a row may be, or seems to be, because its end is not found behind a mistake."""


class _Text:
    """A text that is read as it is needed.

    ahead: bytes that have been read from the stream before.
    line: number of the line at the current place.
    """

    def __init__(self, ahead: bytes, stream: IO[bytes], line: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._stream = stream
        self._text = ""
        self._at = 0
        self._ended = False
        self.line = line
        self._add(ahead, last=False)

    def peek(self) -> str:
        """Returns the next character that is not white space; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._move(self._at if space is None else space.end())
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._fill(READ_BYTES)

    def take(self, expected: str) -> str:
        """Consumes the next character, which must be one of those expected."""
        found = self.peek()
        if not found or found not in expected:
            wanted = " or ".join(map(repr, expected))
            raise _MalformedError(f"expected {wanted} at line {self.line}, not {found!r}")
        self._move(self._at + 1)
        return found

    def value(self) -> Any:
        """Consumes a value."""
        self.peek()
        while True:
            wrong = ""
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                line = self.line + self._text.count("\n", self._at, error.pos)
                if self._ended or _is_final(error):
                    wrong = f"is not JSON: {error.msg} (line {line})"
                if self._ended:
                    raise _MalformedError(wrong) from None
            except (ValueError, RecursionError) as error:
                raise _MalformedError(f"is not JSON: {error} (line {self.line})") from None
            else:
                if (end < len(self._text) or self._ended) and end - self._at <= MAX_ROW_BYTES:
                    self._move(end)
                    return value
            if len(self._text) - self._at > MAX_ROW_BYTES:
                raise _LongError(wrong or f"is longer than {MAX_ROW_BYTES:,} bytes, the maximum (line {self.line})")
            self._fill(max(READ_BYTES, len(self._text) - self._at))

    def _move(self, place: int) -> None:
        self.line += self._text.count("\n", self._at, place)
        self._at = place

    def _fill(self, size: int) -> None:
        data = self._stream.read(size)
        self._add(data, last=not data)

    def _add(self, data: bytes, last: bool) -> None:
        try:
            more = self._decoder.decode(data, last)
        except UnicodeDecodeError as error:
            raise _MalformedError(f"is not UTF-8 ({error.reason}, behind line {self.line})") from None
        self._text = self._text[self._at :] + more
        self._at = 0
        self._ended = last


def _is_final(error: json.JSONDecodeError) -> bool:
    """Returns whether text behind the present end cannot mend an error."""
    return not error.msg.startswith("Unterminated string") and error.pos < len(error.doc) - LONGEST_ESCAPE


def read_documents(
    path: Path, ahead: bytes, stream: IO[bytes], keys: Collection[str], line: int
) -> Iterator[tuple[int, Entry]]:
    """Yields the number and the object of each row, or what is wrong with it.

    ahead: the beginning of the text, which has been read from the stream before.
    keys: keys of which a row has at least one; an object that has none of them may contain the rows.
    line: number of the line at which `ahead` begins.
    """
    number = 0
    values = _values(path=path, ahead=ahead, stream=stream, keys=keys, line=line)
    while True:
        try:
            value = next(values)
            number += 1
            check_rows(path, number)
            entry: Entry = checked_row(value, f"{path}:{number}")
        except StopIteration:
            return
        except _MalformedError as error:
            yield number + 1, DataError(f"{path}:{number + 1}: {error}")
            return
        except DataError as error:
            entry = error
        yield number, entry


def checked_row(value: Any, place: str) -> dict[str, Any]:
    """Returns a value that is a row. Raises `DataError`."""
    if not isinstance(value, dict):
        listed = "; a list of lists lacks the names of its columns" if isinstance(value, list) else ""
        raise DataError(f"{place}: expected a JSON object, not {type(value).__name__}{listed}")
    try:
        check_text(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: is not a JSON object of texts: {error}") from None
    return value


def _values(path: Path, ahead: bytes, stream: IO[bytes], keys: Collection[str], line: int) -> Iterator[Any]:
    text = _Text(ahead, stream, line)
    if text.peek() == "[":
        text.take("[")
        yield from _elements(text)
        if text.peek():
            raise _MalformedError(f"is behind the end of the list (line {text.line}); expected a single list of rows")
        return
    try:
        first = text.value()
    except _LongError:
        text.take("{")
        yield from _rows_of_members(path, text)
        return
    if text.peek():
        yield first
        while text.peek():
            yield text.value()
        return
    inside = rows_in(path, first, keys) if isinstance(first, dict) else None
    yield from [first] if inside is None else inside


def _elements(text: _Text) -> Iterator[Any]:
    """Yields the elements of a list whose opening bracket has been consumed."""
    if text.peek() == "]":
        text.take("]")
        return
    yield text.value()
    while text.take(",]") == ",":
        yield text.value()


def _rows_of_members(path: Path, text: _Text) -> Iterator[Any]:
    """Yields the rows in an object that is longer than a row may be, whose opening brace has been consumed."""
    found = ""
    mark = ","
    while mark == ",":
        key = text.value()
        text.take(":")
        if text.peek() != "[":
            text.value()
        else:
            text.take("[")
            are_rows = text.peek() == "{"
            if are_rows and found:
                raise DataError(several_lists(path, [found, str(key)]))
            for element in _elements(text):
                if are_rows and looks_like_message(element):
                    raise _LongError(f"is longer than {MAX_ROW_BYTES:,} bytes, the maximum")
                if are_rows:
                    yield element
            found = str(key) if are_rows else found
        mark = text.take(",}")
    if not found:
        raise _LongError(f"is longer than {MAX_ROW_BYTES:,} bytes, the maximum of a row, and has no list of objects")
