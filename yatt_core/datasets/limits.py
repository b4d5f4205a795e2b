"""Bounds of what a data file may unpack to, checked before and while it is read.

Consumes the metadata of Parquet files, the messages of Arrow streams, batches and lines. Raises `DataError`, which names the
file and the bound. A compressed file of a few kilobytes can stand for a thousand million rows, or for a value of
gigabytes; without these bounds, reading one would take hours or all memory before anything is reported.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, AnyStr

import pyarrow as pa
import pyarrow.parquet as pq

from yatt_core.errors import DataError
from yatt_core.prompts.media import MAX_BYTES

MAX_ROWS = 100_000_000
"""Rows of a file."""
MAX_ROW_BYTES = 16 << 20
"""Bytes of a row, and of a line of a text file; rows with images may have `media.MAX_BYTES` more for each image."""
MAX_VALUES = 1_000_000
"""Values within one row, at all depths."""
MAX_DEPTH = 32
"""Levels of lists and structs within a column."""
MAX_RATIO = 1_000
"""Unpacked bytes per stored byte of a column."""
LEAST_UNPACKED = 32 << 20
"""Unpacked bytes of the prompts below which their ratio does not matter; for other columns, `MAX_BATCH_BYTES` of a row
group."""
MAX_BATCH_BYTES = 256 << 20
"""Unpacked bytes of a batch of an Arrow stream, and of a column below which its ratio does not matter."""
READ_BYTES = 64 << 20
"""Unpacked bytes of a Parquet file that are read at once, even if every row is as large as a whole column."""
VALUE_BYTES = 8
"""Assumed size of an unpacked value whose encoding stores less, such as a repeated one."""
_COMPRESSED_FIELD = 3
_BUFFERS_FIELD = 2
_HEADER_FIELD = 2


def check_parquet(path: Path, metadata: pq.FileMetaData, prompt: Collection[str]) -> None:
    """Checks a Parquet file's number of rows, and how far its columns unpack.

    prompt: the columns of the prompts, which are checked as a whole, because one text repeated a million times is not
        data; other columns may well repeat a value, and only their row groups are checked.
    """
    check_rows(path, metadata.num_rows)
    prompts = prompts_stored = 0
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            name = column.path_in_schema
            stored = column.total_compressed_size
            unpacked = max(column.total_uncompressed_size, VALUE_BYTES * column.num_values)
            if any(name == own or name.startswith(f"{own}.") for own in prompt):
                prompts = prompts + unpacked
                prompts_stored = prompts_stored + stored
            else:
                _check_ratio(path=path, name=name, unpacked=unpacked, stored=stored, least=MAX_BATCH_BYTES)
    _check_ratio(path=path, name=", ".join(prompt), unpacked=prompts, stored=prompts_stored, least=LEAST_UNPACKED)


def rows_at_once(metadata: pq.FileMetaData, most: int) -> int:
    """Returns the number of rows to unpack at once, so that even rows as large as a whole column fit the bound."""
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    sizes = (group.column(index).total_uncompressed_size for group in groups for index in range(metadata.num_columns))
    return max(1, min(most, READ_BYTES // max(1, max(sizes, default=1))))


def _check_ratio(path: Path, name: str, unpacked: int, stored: int, least: int) -> None:
    if unpacked > least and unpacked > MAX_RATIO * stored:
        raise DataError(
            f"{path}: column {name!r} unpacks from {stored:,} to {unpacked:,} bytes or more; at most {MAX_RATIO:,} times "
            "the stored size is read; write the file with fewer repetitions, or leave the column out"
        )


def check_rows(path: Path, rows: int) -> None:
    """Checks the number of rows of a file."""
    if rows > MAX_ROWS:
        raise DataError(
            f"{path}: has {rows:,} rows or more; at most {MAX_ROWS:,} are read; split the file into several"
        )


def check_depth(path: Path, schema: pa.Schema) -> None:
    """Checks how deeply the columns are nested."""
    for field in schema:
        level = [field.type]
        for _ in range(MAX_DEPTH):
            level = [kind.field(index).type for kind in level for index in range(kind.num_fields)]
        if level:
            raise DataError(f"{path}: column {field.name!r} has more than {MAX_DEPTH} levels; leave it out")


def bounded_parts(path: Path, batch: pa.RecordBatch, first: int, images: int) -> Iterator[pa.RecordBatch]:
    """Yields rows in groups small enough to convert to Python objects at once: a whole batch, or one by one if they are large.

    first: number of the first row.
    images: how many full-size images a row may hold.

    Raises `DataError` for a row beyond the bounds.
    """
    most = MAX_ROW_BYTES + images * MAX_BYTES
    if _size(batch) <= MAX_ROW_BYTES and _values(batch) <= MAX_VALUES:
        yield batch
        return
    for index in range(batch.num_rows):
        row = batch.slice(index, 1)
        if (size := _size(row)) > most:
            raise DataError(f"{path}:{first + index}: the row has {size:,} bytes; at most {most:,} are read")
        if (values := _values(row)) > MAX_VALUES:
            raise DataError(f"{path}:{first + index}: the row has {values:,} values; at most {MAX_VALUES:,} are read")
        yield row


def _values(batch: pa.RecordBatch) -> int:
    """Returns the number of values at all depths."""
    return sum(len(array) for array in _arrays(batch))


def _size(batch: pa.RecordBatch) -> int:
    """Returns the bytes of the values, of dictionaries only of those that occur."""
    size = 0
    for array in _arrays(batch):
        if pa.types.is_dictionary(array.type):
            array = array.dictionary.take(array.indices.unique().drop_null())
        if not _children(array):
            size += array.nbytes
    return size


def _arrays(batch: pa.RecordBatch) -> Iterator[pa.Array]:
    """Yields the columns and everything within them."""
    level = list(batch.columns)
    while level:
        yield from level
        level = [child for array in level for child in _children(array)]


def _children(array: pa.Array) -> list[pa.Array]:
    kind = array.type
    if pa.types.is_struct(kind):
        return list(array.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [array.flatten()]
    return []


def check_message(path: Path, message: pa.ipc.Message) -> None:
    """Checks how far the buffers of an Arrow message unpack, without unpacking any."""
    if message.type not in ("record batch", "dictionary") or message.body is None:
        return
    batch = _Table.root(message.metadata).table(_HEADER_FIELD)
    if message.type == "dictionary":
        batch = batch.table(1)
    if not batch.has(_COMPRESSED_FIELD):
        return
    body = message.body
    unpacked = 0
    for offset, length in batch.buffers():
        if length >= 8 and offset + 8 <= body.size:  # each buffer starts with its unpacked size
            unpacked += max(length, struct.unpack_from("<q", body, offset)[0])
    if unpacked > MAX_BATCH_BYTES:
        raise DataError(
            f"{path}: a batch unpacks to {unpacked:,} bytes; at most {MAX_BATCH_BYTES:,} are read; write fewer rows per "
            "batch, or without compression"
        )


class _Table:
    """A table of a FlatBuffers message, as the metadata of Arrow messages is stored."""

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place

    @classmethod
    def root(cls, data: pa.Buffer) -> _Table:
        """Returns the outermost table. Raises `pa.ArrowInvalid`, as do the other methods, for damaged metadata."""
        view = memoryview(data)
        return cls(view, _number("<I", view, 0))

    def has(self, field: int) -> bool:
        """Returns True if a field is present."""
        return self._at(field) is not None

    def table(self, field: int) -> _Table:
        """Returns the table in a field."""
        return _Table(self._data, self._target(field))

    def buffers(self) -> Iterator[tuple[int, int]]:
        """Yields offset and length of the buffers of a record batch."""
        start = self._target(_BUFFERS_FIELD)
        for index in range(_number("<I", self._data, start)):
            at = start + 4 + 16 * index
            yield _number("<q", self._data, at), _number("<q", self._data, at + 8)

    def _target(self, field: int) -> int:
        at = self._at(field)
        if at is None:
            raise pa.ArrowInvalid("a message lacks a field")
        return at + _number("<I", self._data, at)

    def _at(self, field: int) -> int | None:
        slots = self._place - _number("<i", self._data, self._place)
        if 4 + 2 * field >= _number("<H", self._data, slots):
            return None
        offset = _number("<H", self._data, slots + 4 + 2 * field)
        return self._place + offset if offset else None


def _number(form: str, data: memoryview, place: int) -> int:
    try:
        return int(struct.unpack_from(form, data, place)[0])
    except struct.error as error:
        raise pa.ArrowInvalid(f"a message is damaged: {error}") from None


def check_unpacked(path: Path, unpacked: int, stored: int) -> None:
    """Checks how far a compressed text has been unpacked."""
    if unpacked > MAX_BATCH_BYTES and unpacked > MAX_RATIO * stored:
        raise DataError(
            f"{path}: unpacks from {stored:,} to {unpacked:,} bytes or more; at most {MAX_RATIO:,} times the stored size is "
            "read; unpack it, or write it with fewer repetitions"
        )


def bounded_lines(path: Path, stream: IO[AnyStr], before: int = 0) -> Iterator[AnyStr]:
    """Yields the lines of a file, none of which is read beyond the bound for a row.

    before: number of lines that have been read.
    """
    number = before
    while line := stream.readline(MAX_ROW_BYTES + 1):
        number += 1
        check_rows(path, number)
        if len(line) > MAX_ROW_BYTES:
            raise DataError(f"{path}:{number}: the line is longer than {MAX_ROW_BYTES:,} bytes, the maximum")
        yield line
