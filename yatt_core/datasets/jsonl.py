"""JSON Lines files: one JSON object per line, in UTF-8.

Consumes a file. Produces its objects, and a `DataError` with file and line for each line that is not an object, so
that the caller can report several. Raises `ConfigurationError` for a file that cannot be opened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from yatt_core.datasets.limits import bounded_lines
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.regular_files import check_regular


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | DataError]]:
    """Yields the line number (from 1) and the object of each row, or what is wrong with it; skips blank lines."""
    check_regular(path, "data.sources")
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ConfigurationError(f"data.sources: {path} cannot be read: {error.strerror}") from None
    with stream:
        for number, line in enumerate(bounded_lines(path, stream), start=1):
            if line.strip():
                try:
                    entry: dict[str, Any] | DataError = _parse(line, f"{path}:{number}")
                except DataError as error:
                    entry = error
                yield number, entry


def _parse(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
        json.dumps(row, ensure_ascii=False).encode()  # a lone surrogate is valid JSON, but not valid text
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: is not UTF-8 ({error.reason} at byte {error.start} of the line)") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: is not a JSON object on one line: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected a JSON object, not {type(row).__name__}")
    return row


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
    return number
