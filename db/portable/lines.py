"""The lines of an exported table: each is a JSON array of its number, a digest of its values, and the values.

Pure. The number and the digest are what lets a check name the row that is missing or altered, which the digest of the
whole table cannot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from db.core.engine import canonical_json
from db.core.errors import LedgerError

DIGITS = 16
"""Hexadecimal digits of a row's digest: enough to notice damage; the whole table has a sha256."""


class DamagedRow(LedgerError):
    """A line of an exported table is missing, altered or malformed."""


def line_of(number: int, values: Sequence[Any]) -> bytes:
    """Returns a row as a line, with its end.

    number: its place in the table, counted from 1.
    """
    return f"[{number},{json.dumps(_digest(values))},{canonical_json(values)}]\n".encode()


def values_of(table: str, lines: Iterable[bytes], rows: int) -> Iterator[list[Any]]:
    """Yields the values of each line.

    rows: the number of rows that the table must have.

    Raises `DamagedRow`, which names the first row that is missing or altered.
    """
    number = 0
    for number, line in enumerate(lines, start=1):
        yield _values(table, number, line)
    if number != rows:
        missing = f"row {number + 1} is missing" if number < rows else f"row {rows + 1} is one too many"
        raise DamagedRow(f"table {table}: {missing}; it has {number} rows, expected {rows}")


def _values(table: str, number: int, line: bytes) -> list[Any]:
    try:
        found, digest, values = json.loads(line)
    except ValueError as error:
        raise DamagedRow(f"table {table}, row {number}: not a row: {line[:60]!r}") from error
    if found != number:
        raise DamagedRow(f"table {table}: row {number} is missing; found row {found} in its place")
    if not isinstance(values, list) or _digest(values) != digest:
        raise DamagedRow(f"table {table}, row {number}: its values were altered: {json.dumps(values)[:120]}")
    return values


def _digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()[:DIGITS]
