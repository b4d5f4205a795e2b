"""Rows of a source that is a function of the user's: installed code or a file, vouched for by the digest of its source.

Consumes a `FunctionSource`. Produces its rows as plain values, one at a time. The function is called anew for each pass over the
rows, so it must yield the same rows each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from yatt_core.algorithms.own import SOURCES, own_function, verify_source
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.installed import error_place, failure_text
from yatt_core.prompts.keys import without
from yatt_core.spec.sections.data import DataSpec, FunctionSource

PLACE = "data.sources function"
PLAIN = "a mapping of strings to values that JSON can represent; images are bytes"


def own_rows(source: FunctionSource, split: str) -> Iterator[tuple[int, dict[str, Any] | DataError]]:
    """Yields the number (from 1) and the values of each row, or why a row has none.

    split: `train` or `held_out`.

    Raises `ConfigurationError` if the function cannot be found, is not the one that the spec stands for, or fails.
    """
    verify_source(source, SOURCES, exact=True)
    function = own_function(source, SOURCES)
    try:
        rows = iter(function(split, **source.options))
    except (Exception, SystemExit) as error:
        raise _failed(source, error) from error
    for number in count(1):
        try:
            row = next(rows)
        except StopIteration:
            return
        except (Exception, SystemExit) as error:
            raise _failed(source, error) from error
        yield number, _plain(row, f"{source.path}:{number}", source.image_field)


def open_sources(data: DataSpec, run_folder: Path) -> None:
    """Executes the run's own copies of the files of its sources; this process then uses these and no others.

    Raises as `verify_source` does.
    """
    for source in data.sources:
        if isinstance(source, FunctionSource) and source.file is not None:
            verify_source(source, SOURCES, exact=True, run_folder=run_folder)


def _failed(source: FunctionSource, error: Exception | SystemExit) -> ConfigurationError:
    return ConfigurationError(f"{PLACE}: {source.path} failed: {error_place(error)}: {failure_text(error)}")


def _plain(row: Any, place: str, images: str | None) -> dict[str, Any] | DataError:
    """Returns a copy of a row, or why it cannot be used."""
    if not isinstance(row, dict) or not all(isinstance(key, str) for key in row):
        return DataError(f"{place}: the row is {type(row).__name__}; expected {PLAIN}")
    try:
        json.dumps(row if images is None else without(row, images), allow_nan=False)
    except (TypeError, ValueError) as error:
        return DataError(f"{place}: {error}; expected {PLAIN}")
    return dict(row)
