"""Small tables that a workload gives for people: checked, and as JSON that MLflow shows as a table.

Consumes a `Listing`. Produces `{"columns": [...], "data": [[...], ...]}`, and reads it again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.printable import printable
from yatt_core.workloads.contract import MOST_ROWS, Listing

SHOWN = "shown.json"
"""The file beside an iteration's sealed columns that says in words what they are."""
LONGEST_TEXT = 2_000
"""Characters of a text that are kept."""
MOST_COLUMNS = 30
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


def plain_listings(found: Any, place: str) -> dict[str, dict[str, Any]]:
    """Returns the tables of an evaluation as plain values. Raises `ConfigurationError` for what is none.

    place: what has returned them, for messages.
    """
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"{place} returned {type(found).__name__}; expected tables by name")
    for name in found:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"{place}: table {name!r}: expected a name of lower-case letters, digits and _")
    return {name: plain_listing(found[name], f"{place}: table {name!r}") for name in sorted(found)}


def plain_listing(found: Any, place: str) -> dict[str, Any]:
    """Returns a table as plain values; longer texts are cut. Raises `ConfigurationError` for what is none."""
    if not isinstance(found, Listing):
        raise ConfigurationError(f"{place} is {type(found).__name__}; expected a Listing")
    width = len(found.columns)
    if not 0 < width <= MOST_COLUMNS or len(found.rows) > MOST_ROWS:
        raise ConfigurationError(
            f"{place} has {width} columns and {len(found.rows)} rows; expected 1 to {MOST_COLUMNS}, and at most {MOST_ROWS}"
        )
    for number, row in enumerate(found.rows):
        if len(row) != width:
            raise ConfigurationError(f"{place}: row {number} has {len(row)} values; expected {width}")
    rows = [[_plain(value, f"{place}: row {number}") for value in row] for number, row in enumerate(found.rows)]
    return {"columns": [plain_text(str(name)) for name in found.columns], "data": rows}


def plain_text(text: str) -> str:
    """Returns the first `LONGEST_TEXT` characters; those that cannot be shown become escape sequences."""
    return printable(text[:LONGEST_TEXT])[:LONGEST_TEXT]


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ConfigurationError(f"{place}: has {value!r:.80}; expected a text, a finite number of Python's own, or None")


def encode_listing(plain: Mapping[str, Any]) -> bytes:
    """Returns the contents of a file."""
    return (json.dumps(dict(plain), ensure_ascii=False) + "\n").encode()


def decode_listing(data: bytes, place: str) -> Listing:
    """Returns a table that `encode_listing` wrote. Raises `DataError` for other bytes.

    place: where they come from, for messages.
    """
    try:
        told = json.loads(data)
        return Listing(tuple(told["columns"]), tuple(tuple(row) for row in told["data"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{place}: is no table: {error!r}") from error
