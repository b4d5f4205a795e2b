"""Arrow tables as bytes, for processes that send each other rows: Arrow's stream format."""

from __future__ import annotations

import pyarrow as pa


def encode_table(table: pa.Table, compress: bool = False) -> bytes:
    """Returns a table's bytes.

    compress: whether its columns are compressed; worth it for columns whose values repeat.
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if compress else None)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def decode_table(data: bytes) -> pa.Table:
    """Returns the table that `encode_table` has encoded."""
    return pa.ipc.open_stream(pa.BufferReader(data)).read_all()
