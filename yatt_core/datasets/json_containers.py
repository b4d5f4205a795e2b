"""Objects that contain the rows of a whole file, and objects that are tables in another form.

Consumes the only object of a file. Produces its rows; raises `DataError` for a table without rows, as pandas and `datasets`
write it unless they are told otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from yatt_core.errors import DataError
from yatt_core.prompts.keys import MISSING, value_at

REWRITE = 'write one object a row (pandas: to_json(orient="records", lines=True); datasets: to_json)'


def rows_in(path: Path, document: Mapping[str, Any], keys: Collection[str]) -> list[Any] | None:
    """Returns the rows in an object; None if it is a row itself.

    keys: keys of which a row has at least one.
    """
    _refuse_tables(path, document)
    lists = {name: value for name, value in document.items() if _is_list_of_objects(value)}
    if any(value_at(document, key, MISSING) is not MISSING for key in keys):
        return None
    if any(looks_like_message(element) for value in lists.values() for element in value):
        return None
    if len(lists) > 1:
        raise DataError(several_lists(path, list(lists)))
    return next(iter(lists.values()), None)


def several_lists(path: Path, names: Collection[str]) -> str:
    """Returns the message about an object with several lists that may be the rows."""
    return f"{path}: has several lists of objects, {', '.join(names)}; write the rows of each to a file of its own"


def looks_like_message(element: Any) -> bool:
    """Returns True for a message of a conversation."""
    return isinstance(element, Mapping) and ("role" in element or {"from", "value"} <= element.keys())


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(element, Mapping) for element in value)


def _refuse_tables(path: Path, document: Mapping[str, Any]) -> None:
    values = list(document.values())
    if isinstance(document.get("columns"), list) and _all_lists(document.get("data")):
        raise DataError(f'{path}: is a table as pandas writes it with orient="split"; {REWRITE}')
    if values and all(isinstance(value, Mapping) and _numbered(value) for value in values):
        raise DataError(f"{path}: is a table by column, as pandas' to_json writes it by default; {REWRITE}")
    if values and _numbered(document) and all(isinstance(value, Mapping) for value in values):
        raise DataError(f'{path}: is a table as pandas writes it with orient="index"; {REWRITE}')
    if (
        len(values) > 1
        and _all_lists(values)
        and len({len(value) for value in values}) == 1
        and not any(map(_is_list_of_objects, values))
    ):
        raise DataError(f"{path}: is an object of columns, each a list of values; {REWRITE}")


def _all_lists(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(element, list) for element in value)


def _numbered(value: Mapping[str, Any]) -> bool:
    """Returns True if the keys are the numbers from 0."""
    return bool(value) and list(value) == [str(number) for number in range(len(value))]
