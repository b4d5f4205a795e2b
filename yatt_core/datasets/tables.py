"""Rows of tables on disk: Parquet, Arrow streams (as Hugging Face `datasets` writes them) and CSV.

Consumes a file. Produces its rows as plain JSON values, a few at a time, so that a file may be of any size, and so
that Ctrl-C ends the reading at once. What a file may unpack to is bounded (`limits`).
Times and decimals become text, non-finite numbers become null, and columns that JSON cannot represent (bytes,
maps, times within lists) are dropped unless the caller needs them. Raises `ConfigurationError` for a file that
cannot be opened, and `DataError` for one that is damaged or has duplicate column names.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from yatt_core.datasets.limits import (
    bounded_lines,
    bounded_parts,
    check_depth,
    check_message,
    check_parquet,
    check_rows,
    rows_at_once,
)
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.regular_files import check_regular

ROWS_AT_ONCE = 64
HEAVY_ROWS_AT_ONCE = 8
"""Used instead of `ROWS_AT_ONCE` for rows with images."""
IMAGES_OF_A_ROW = 2
"""Number of the largest images that a row has room for; of smaller ones it may have more."""
BUFFER_BYTES = 1 << 20
"""Buffer size per Parquet column; without a buffer, whole columns of a row group would be read at once."""
Rows = Iterator[tuple[int, dict[str, Any]]]
"""Pairs of row number (from 1) and row."""


def read_parquet(path: Path, prompt: str, needed: Set[str], heavy: bool) -> Rows:
    """Yields the rows of a Parquet file.

    prompt: the column of the prompts.
    needed: columns that are read whatever their type.
    heavy: True if rows contain images.
    """
    with _reading(path), pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
        check_parquet(path, file.metadata, prompt)
        columns = _columns(path, file.schema_arrow, needed)
        size = rows_at_once(file.metadata, HEAVY_ROWS_AT_ONCE if heavy else ROWS_AT_ONCE)
        yield from _rows(path, file.iter_batches(batch_size=size, columns=columns, use_threads=False), size, heavy)


def read_arrow_stream(path: Path, needed: Set[str], heavy: bool) -> Rows:
    """Yields the rows of an Arrow IPC stream.

    needed, heavy: as for `read_parquet`.
    """
    with _reading(path):
        _check_messages(path)
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            columns = _columns(path, stream.schema, needed)
            batches = (batch.select(columns) for batch in stream)
            size = HEAVY_ROWS_AT_ONCE if heavy else ROWS_AT_ONCE
            yield from _rows(path, map(_validated, batches), size, heavy)


def read_csv(path: Path) -> Rows:
    """Yields the rows of a UTF-8 CSV file with a header line; every value is text, and empty values are null."""
    with _reading(path), path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(bounded_lines(path, stream), strict=True)
        _check_names(path, reader.fieldnames or ())
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                raise DataError(f"{path}:{number}: the row and the header line have different numbers of values")
            yield number, {key: value or None for key, value in row.items()}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns the readers' exceptions into errors that name the file; rejects files that are not regular."""
    check_regular(path, "data.sources")
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise ConfigurationError(f"data.sources: {path} cannot be read: {error.strerror}") from None
    except (OSError, pa.ArrowException, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _columns(path: Path, schema: pa.Schema, needed: Set[str]) -> list[str]:
    """Returns the columns to read, in the table's order."""
    check_depth(path, schema)
    _check_fields(path, schema)
    return [field.name for field in schema if field.name in needed or _is_text(field.type) or _is_plain(field.type)]


def _check_fields(path: Path, fields: Iterable[pa.Field]) -> None:
    """Raises `DataError` if columns, or nested fields at any depth, share a name, because a row can hold only one."""
    fields = list(fields)
    _check_names(path, [field.name for field in fields])
    for field in fields:
        kind = field.type
        while hasattr(kind, "value_type"):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            _check_fields(path, (kind.field(i) for i in range(kind.num_fields)))


def _check_names(path: Path, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{path}: two columns are named {twice[0]!r}; rename one of them")


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch after checking all its offsets and strings.

    Without this check, reading a damaged stream could access memory beyond its end. Raises `pa.ArrowInvalid`.
    """
    batch.validate(full=True)
    return batch


def _is_text(kind: pa.DataType) -> bool:
    """Returns True for types that are converted to text."""
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _is_plain(kind: pa.DataType) -> bool:
    """Returns True for types that are JSON values at any depth."""
    types = pa.types
    if types.is_struct(kind):
        return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    simple = (
        types.is_null,
        types.is_boolean,
        types.is_integer,
        types.is_floating,
        types.is_string,
        types.is_large_string,
    )
    return any(test(kind) for test in simple)


def _check_messages(path: Path) -> None:
    """Checks the messages of an Arrow stream; reads their metadata only."""
    with pa.memory_map(str(path)) as file:
        for message in pa.ipc.MessageReader.open_stream(file):
            check_message(path, message)


def _rows(path: Path, batches: Iterator[pa.RecordBatch], size: int, heavy: bool) -> Rows:
    """Yields the rows of all batches.

    size: maximum number of rows that exist as Python objects at once.
    heavy: True if rows contain images.
    """
    number = 0
    for batch in batches:
        check_rows(path, number + batch.num_rows)
        for start in range(0, batch.num_rows, size):
            for part in bounded_parts(path, batch.slice(start, size), number + 1, IMAGES_OF_A_ROW if heavy else 0):
                for row in _as_text(part).to_pylist():
                    number += 1
                    yield number, {key: _finite(value) for key, value in row.items()}


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    for index, field in enumerate(batch.schema):
        if _is_text(field.type):
            batch = batch.set_column(index, field.name, pc.cast(batch.column(index), pa.string()))
    return batch


def _finite(value: Any) -> Any:
    """Returns the value with null in place of each non-finite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value
