"""The reference answers of a row: texts, numbers, booleans, and lists of right answers.

Consumes the value of a row. Produces text, with numbers as they are written in the file. Raises `DataError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yatt_core.errors import DataError
from yatt_core.json_text import number_text

EXPECTED = "expected the answer as a string, a number, a boolean, or a list of right answers"


@dataclass(frozen=True, slots=True)
class Answers:
    """The right answers of a row: the first, and the others. None if the row has none."""

    first: str | None = None
    others: tuple[str, ...] = ()


NO_ANSWERS = Answers()


def read_answers(value: Any, key: str) -> Answers:
    """Returns the answers in a row's value. Null and an empty list are no answer.

    key: the value's key, for messages.
    """
    if value is None:
        return NO_ANSWERS
    if not isinstance(value, list):
        return Answers(_text(value, key))
    if any(isinstance(item, Mapping) for item in value):
        raise DataError(f"{key!r} is a list of objects, but not of messages; {EXPECTED}")
    texts = [_text(item, key) for item in value]
    distinct = tuple(dict.fromkeys(texts))
    return Answers(distinct[0], distinct[1:]) if distinct else NO_ANSWERS


def _text(value: Any, key: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):  # a boolean is a number of Python's
        return number_text(value)
    if isinstance(value, Mapping):
        names = ", ".join(f"{key}.{name}" for name in value) or "none"
        raise DataError(f"{key!r} is an object; {EXPECTED}; the keys in it: {names}")
    raise DataError(f"{key!r} is {'a list in a list' if isinstance(value, list) else type(value).__name__}; {EXPECTED}")
