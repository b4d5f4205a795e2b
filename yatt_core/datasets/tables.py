"""Rows of tables on disk: Parquet, Arrow streams (as Hugging Face `datasets` writes them), CSV and TSV.

Consumes a file. Produces its rows as plain JSON values, a few at a time, so that a file may be of any size, and so
that Ctrl-C ends the reading at once. What a file may unpack to is bounded (`limits`).
Times and decimals become text, non-finite numbers become null, JSON texts of `datasets` become values, and columns that
JSON cannot represent (bytes, maps, times within lists) are dropped unless the caller needs them. Raises
`ConfigurationError` for a file that cannot be opened, and `DataError` for one that is damaged or has duplicate column names.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from yatt_core.datasets.columns import Columns, SourceKeys, check_names, columns_of, plain_row, prompt_columns
from yatt_core.datasets.content import check_table, ending, opened
from yatt_core.datasets.limits import (
    MAX_ROW_BYTES,
    bounded_lines,
    bounded_parts,
    check_message,
    check_parquet,
    check_rows,
    rows_at_once,
)
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.regular_files import check_regular

TABS = ".tsv"
"""Ending of the names of files whose values are separated by tabs."""
ROWS_AT_ONCE = 64
HEAVY_ROWS_AT_ONCE = 8
"""Used instead of `ROWS_AT_ONCE` for rows with images."""
IMAGES_OF_A_ROW = 2
"""Number of the largest images that a row has room for; of smaller ones it may have more."""
BUFFER_BYTES = 1 << 20
"""Buffer size per Parquet column; without a buffer, whole columns of a row group would be read at once."""
Rows = Iterator[tuple[int, dict[str, Any]]]
"""Pairs of row number (from 1) and row."""


def read_parquet(path: Path, wanted: SourceKeys) -> Rows:
    """Yields the rows of a Parquet file."""
    heavy = wanted.images is not None
    with _reading(path):
        check_table(path)
        with pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            check_parquet(path, file.metadata, prompt_columns(file.schema_arrow, wanted.prompts))
            columns = columns_of(path, file.schema_arrow, wanted)
            size = rows_at_once(file.metadata, HEAVY_ROWS_AT_ONCE if heavy else ROWS_AT_ONCE)
            batches = file.iter_batches(batch_size=size, columns=columns.names, use_threads=False)
            yield from _rows(path, batches, size, columns)


def read_arrow_stream(path: Path, wanted: SourceKeys) -> Rows:
    """Yields the rows of an Arrow IPC stream."""
    with _reading(path):
        check_table(path)
        _check_messages(path)
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            columns = columns_of(path, stream.schema, wanted)
            batches = (batch.select(columns.names) for batch in stream)
            size = ROWS_AT_ONCE if wanted.images is None else HEAVY_ROWS_AT_ONCE
            yield from _rows(path, map(_validated, batches), size, columns)


def read_csv(path: Path) -> Rows:
    """Yields the rows of a UTF-8 file with a header line, whose values are separated by commas, or by tabs in a .tsv file.

    Every value is text, and empty values are null. A first column without a name, in which pandas writes the numbers of
    rows, is left out.
    """
    csv.field_size_limit(MAX_ROW_BYTES)  # of the whole process, whose other readers of CSV have files of our own
    with _reading(path), opened(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        tabs = ending(path) == TABS
        reader = csv.DictReader(bounded_lines(path, text), strict=True, delimiter="\t" if tabs else ",")
        names = reader.fieldnames or ()
        check_names(path, names)
        if len(names) == 1 and (other := next((mark for mark in ";\t," if mark in names[0]), None)) is not None:
            expected = "tabs" if tabs else "commas"
            raise DataError(
                f"{path}: the header line is {names[0]!r}; expected {expected} between values, not {other!r}"
            )
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                raise DataError(f"{path}:{number}: the row and the header line have different numbers of values")
            yield number, {key: value or None for key, value in row.items() if key or key != names[0]}


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


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch after checking all its offsets and strings.

    Without this check, reading a damaged stream could access memory beyond its end. Raises `pa.ArrowInvalid`.
    """
    batch.validate(full=True)
    return batch


def _check_messages(path: Path) -> None:
    """Checks the messages of an Arrow stream; reads their metadata only."""
    with pa.memory_map(str(path)) as file:
        for message in pa.ipc.MessageReader.open_stream(file):
            check_message(path, message)


def _rows(path: Path, batches: Iterator[pa.RecordBatch], size: int, columns: Columns) -> Rows:
    """Yields the rows of all batches.

    size: maximum number of rows that exist as Python objects at once.
    """
    images = 0 if columns.images is None else IMAGES_OF_A_ROW
    number = 0
    for batch in batches:
        check_rows(path, number + batch.num_rows)
        for start in range(0, batch.num_rows, size):
            for part in bounded_parts(path, batch.slice(start, size), number + 1, images):
                for row in _as_text(part, columns.texts).to_pylist():
                    number += 1
                    yield number, plain_row(path, number, row, columns)


def _as_text(batch: pa.RecordBatch, texts: Collection[str]) -> pa.RecordBatch:
    for index, field in enumerate(batch.schema):
        if field.name in texts:
            batch = batch.set_column(index, field.name, pc.cast(batch.column(index), pa.string()))
    return batch
