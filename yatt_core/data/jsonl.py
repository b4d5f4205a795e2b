"""Local JSON Lines files as a source of prompts: one JSON object a line, UTF-8.

Consumes a file and the keys of prompt and answer; produces its rows. Raises `ConfigurationError` for a file that cannot be
opened, `DataError` with file and line for a row that cannot be used.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from yatt_core.digests import file_sha256
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.spec.data import JsonlSource


def read_rows(path: Path, source: JsonlSource) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of each row; lines of white space are skipped."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ConfigurationError(f"data.sources: {path} cannot be read: {error.strerror}") from None
    found = False
    with stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                found = True
                yield number, _parse_row(line, f"{path}:{number}", source)
    if not found:
        raise DataError(f"{path}: the file has no rows")


def images_of(row: Mapping[str, Any], place: str, key: str | None, folder: Path) -> tuple[tuple[str, Path], ...]:
    """Content address and file of each image of a row. key: none for prompts of text alone."""
    if key is None or row.get(key) is None:
        return ()
    names = [row[key]] if isinstance(row[key], str) else row[key]
    try:
        return tuple((file_sha256(folder / name), folder / name) for name in names)
    except OSError as error:
        raise DataError(f"{place}: {key!r}: {error.filename} cannot be read: {error.strerror}") from None


def _parse_row(line: bytes, place: str, source: JsonlSource) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
        json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is JSON, but no text
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: is not UTF-8 ({error.reason} at byte {error.start} of the line)") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: is not a JSON object on one line: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{place}: a row is a JSON object, this is {type(row).__name__}")
    _check_prompt(row, place, source.prompt_field)
    answer = row.get(source.answer_field)
    if answer is not None and not isinstance(answer, str):
        raise DataError(f"{place}: {source.answer_field!r} is {type(answer).__name__}, write the answer as a string")
    return row


def _check_prompt(row: Mapping[str, Any], place: str, key: str) -> None:
    if key not in row:
        near = difflib.get_close_matches(key, row, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its keys: {', '.join(row) or 'none'}"
        raise DataError(f"{place}: the row has no key {key!r} for the prompt (data.sources prompt_field); {hint}")
    if not isinstance(row[key], str) or not row[key].strip():
        raise DataError(f"{place}: {key!r} must be a string that is not empty")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
