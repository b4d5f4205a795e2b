"""JSON texts of others: read strictly, with numbers that remember how they are written.

Consumes text. Produces plain values. Raises `ValueError` for what is no JSON, and for numbers that JSON cannot give back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn


class WrittenFloat(float):
    """A number that Python writes in another way than the file does, such as 1e-3 or 2.50."""

    written: str

    def __new__(cls, text: str) -> WrittenFloat:
        """Returns the number in a text."""
        number = super().__new__(cls, text)
        number.written = str(text)
        return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    """Parses a number with a fraction or an exponent.

    Raises `ValueError` beyond the range of a double, which Python would read as infinity and JSON cannot
    represent.
    """
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} exceeds the largest number, about 1.8e308")
    return number if repr(number) == text else WrittenFloat(text)


DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
"""Reads a value strictly; integers are exact, whatever their size."""


def check_text(value: Any) -> None:
    """Raises `ValueError` for a value with a lone surrogate, which is valid JSON, but not valid text."""
    json.dumps(value, ensure_ascii=False).encode()


def parsed(text: str, opening: str) -> Any:
    """Returns the value of a text that is JSON and begins with `{` or `[`; None for any other text."""
    if not text.lstrip().startswith(opening):
        return None
    try:
        value = DECODER.decode(text.strip())
        check_text(value)
    except (ValueError, RecursionError):
        return None
    return value


def object_in(value: Any) -> Mapping[str, Any] | None:
    """Returns a value that is an object or the JSON text of one; None for any other value."""
    if isinstance(value, Mapping):
        return value
    found = parsed(value, "{") if isinstance(value, str) else None
    return found if isinstance(found, dict) else None


def number_text(number: int | float) -> str:
    """Returns a number as it is written in its file, if that is known; `true` or `false` for a boolean."""
    if isinstance(number, bool):
        return "true" if number else "false"
    return number.written if isinstance(number, WrittenFloat) else repr(number)
