"""Arrow columns as flat numpy arrays and back; the only module that relies on Arrow's memory layout.

Consumes columns of numbers, booleans, strings and lists of them, chunked or sliced in any way. Produces arrays
that do not depend on chunks or slices: concatenated values and, for rows of unequal length, int64 offsets
[rows + 1] that start at 0.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from yatt_core.errors import DataError
from yatt_core.wire.ragged import Array, Int64, offsets_of


def fixed_column(table: pa.Table, name: str) -> Array:
    """Returns a column of numbers or booleans, [rows]. Raises `DataError` for nulls."""
    return _numbers(_whole(table, name), name)


def ragged_column(table: pa.Table, name: str) -> tuple[Array, Int64]:
    """Returns a column of lists of numbers: values [sum of lengths], offsets [rows + 1].

    Raises `DataError` for nulls.
    """
    array = _whole(table, name)
    _refuse_nulls(array, name)
    return _numbers(array.flatten(), name), offsets_of(pc.list_value_length(array).to_numpy(zero_copy_only=False))


def text_column(table: pa.Table, name: str) -> tuple[Array, Int64, Int64]:
    """Returns a column of strings: UTF-8 bytes (uint8), offsets [rows + 1], lengths in bytes [rows].

    The length of a null is -1.
    """
    array = _whole(table, name).cast(pa.large_string())
    filled = array.fill_null("")
    lengths = pc.binary_length(filled).to_numpy(zero_copy_only=False).astype(np.int64)
    _, bounds, data = filled.buffers()
    start = np.frombuffer(bounds, dtype="<i8")[filled.offset] if len(filled) else 0
    offsets = offsets_of(lengths)
    contents: Array = np.frombuffer(data, dtype=np.uint8)[start : start + offsets[-1]] if offsets[-1] else _empty()
    lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return contents, offsets, lengths


def list_array(values: Array, offsets: Int64) -> pa.Array:
    """Returns an Arrow array of lists from flat values and offsets."""
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def _empty() -> Array:
    return np.empty(0, dtype=np.uint8)


def _whole(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        raise DataError(f"column {name!r} is missing; the columns are {', '.join(table.column_names)}")
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _numbers(array: pa.Array, name: str) -> Array:
    _refuse_nulls(array, name)
    numbers: Array = array.to_numpy(zero_copy_only=False)
    return numbers


def _refuse_nulls(array: pa.Array, name: str) -> None:
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(f"column {name!r} has no value in row {row}; every row needs one")
