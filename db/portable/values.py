"""Values of columns as JSON, so that rows written from one kind of database can be loaded into the other.

Pure. A column has one of six kinds, named in the export beside it: rows can be loaded by the kinds alone, without the
models of the version that wrote them.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, LargeBinary, Table, Text
from sqlalchemy.types import TypeEngine

from db.core.errors import LedgerError

TYPES: Mapping[str, TypeEngine[Any]] = {
    "text": Text(),
    "integer": BigInteger(),
    "real": Double(),
    "boolean": Boolean(),
    "bytes": LargeBinary(),
    "json": JSON(none_as_null=True),
}
"""The type with which a column of each kind is loaded."""


def kind_of(column: Column[Any]) -> str:
    """Returns the kind of a column."""
    for name, kind in (("json", JSON), ("bytes", LargeBinary), ("boolean", Boolean), ("text", Text)):
        if isinstance(column.type, kind):
            return name
    return "integer" if column.type.python_type is int else "real"


def kinds_of(table: Table) -> dict[str, str]:
    """Returns the kind of each column, in the order of the table."""
    return {column.name: kind_of(column) for column in table.columns}


def to_json(kind: str, value: Any) -> Any:
    """Returns a value as JSON has it."""
    if kind == "bytes" and value is not None:
        return base64.b64encode(value).decode()
    if kind == "real" and value is not None and not math.isfinite(value):
        return repr(value)  # JSON has no name for it
    return value


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


READERS: Mapping[str, Callable[[Any], Any]] = {"bytes": _bytes, "real": float}


def from_json(kind: str, value: Any) -> Any:
    """Returns the value that `to_json` was given. Raises `LedgerError` for one that does not fit the kind."""
    if value is None or kind not in READERS:
        return value
    try:
        return READERS[kind](value)
    except (ValueError, TypeError) as error:
        raise LedgerError(f"{value!r:.60} is not a value of kind {kind}") from error
