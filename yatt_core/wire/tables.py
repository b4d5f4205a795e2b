"""Arrow tables as bytes: in Arrow's stream format for processes that send each other rows, and in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from yatt_core.errors import DataError


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Converts an error of Arrow about the bytes of a file into a `DataError` that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:  # Arrow's error for a damaged page is an OSError
        raise DataError(f"{path}: not a Parquet file with the expected columns: {error}") from error


def encode_table(table: pa.Table, compress: bool = False) -> bytes:
    """Returns a table's bytes.

    compress: whether its columns are compressed; worth it for columns whose values repeat.
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if compress else None)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def decode_table(data: bytes | bytearray) -> pa.Table:
    """Returns the table that `encode_table` has encoded."""
    return pa.ipc.open_stream(pa.BufferReader(data)).read_all()
