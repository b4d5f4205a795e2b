"""Keys of rows: a name, or names with dots between them that lead into objects, such as `reward_model.ground_truth`.

Consumes rows. Produces values, columns, and hints about keys that may have been meant. An object may also be stored as
JSON text, as verl's `extra_info` often is.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any, Final

from yatt_core.json_text import object_in

DEEPEST = 3
MOST_NAMED = 200
"""Levels and number of the keys that a hint considers."""


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""Stands for the value of a key that a row lacks, which differs from null."""


def value_at(entry: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Returns the value under a key; the default if there is none. A name that contains dots takes precedence over a path."""
    if key in entry:
        return entry[key]
    for head, tail in _splits(key):
        inside = object_in(entry[head]) if head in entry else None
        found = MISSING if inside is None else value_at(inside, tail, MISSING)
        if found is not MISSING:
            return found
    return default


def column_of(key: str, columns: Collection[str]) -> str | None:
    """Returns the column into which a key leads; None if there is none."""
    return next((name for name in (key, *(head for head, _ in _splits(key))) if name in columns), None)


def path_in(key: str, column: str) -> tuple[str, ...]:
    """Returns the names below a column to which a key leads; empty for the column itself."""
    return tuple(key[len(column) + 1 :].split(".")) if key != column else ()


def without(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns the row without the value under a key."""
    if key in entry:
        return {name: value for name, value in entry.items() if name != key}
    for head, tail in _splits(key):
        inside = object_in(entry[head]) if head in entry else None
        if inside is not None and value_at(inside, tail, MISSING) is not MISSING:
            return {**entry, head: without(inside, tail)}
    return dict(entry)


def hint(key: str, entry: Mapping[str, Any]) -> str:
    """Returns a hint about the key that may have been meant instead of a missing one, nested keys included."""
    known = [name for _, name in zip(range(MOST_NAMED), _nested(entry, DEEPEST), strict=False)]
    last = key.rpartition(".")[2]
    near = [name for name in known if name.rpartition(".")[2] == last] or difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"its keys: {', '.join(entry) or 'none'}"


def _splits(key: str) -> Iterator[tuple[str, str]]:
    """Yields what is before and behind each dot, the last dot first."""
    end = key.rfind(".")
    while end > 0:
        yield key[:end], key[end + 1 :]
        end = key.rfind(".", 0, end)


def _nested(entry: Mapping[str, Any], levels: int) -> Iterator[str]:
    """Yields all keys, those of a level before those below them."""
    yield from entry
    for key, value in entry.items() if levels > 1 else ():
        for below in _nested(object_in(value) or {}, levels - 1):
            yield f"{key}.{below}"
