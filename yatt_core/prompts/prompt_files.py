"""Prompts on disk: Parquet files, written prompt by prompt and read on demand.

Consumes `Prompt`s. Produces files of small row groups; a reader keeps the most recent of them in memory, up to a number of
bytes, so memory use does not depend on the size of the corpus.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from yatt_core.digests import canonical_json
from yatt_core.errors import DataError
from yatt_core.prompts.prompt import Message, Prompt

SCHEMA = pa.schema(
    [
        pa.field("source", pa.int32(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("prompt_id", pa.large_string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("answer", pa.large_string()),
        pa.field("entry", pa.large_string(), nullable=False),
        pa.field("messages", pa.large_string()),
    ]
)
MEDIA_FIELD = pa.field("media", pa.list_(pa.string()), nullable=False)
"""The column for images, which only files of prompts that may have images contain."""
GROUP_ROWS = 256
GROUP_CHARACTERS = 1 << 18
"""A row group ends at whichever limit it reaches first."""
KEPT_BYTES = 6 << 20
"""What a reader keeps of a file; in memory it takes about three times as much. Prompts are drawn in an order that has nothing to
do with the file's, so that each prompt of a small corpus costs the reading of a whole group if fewer are kept than there are."""


class PromptWriter:
    """Writes a file; a context manager. The same prompts produce the same bytes."""

    def __init__(self, path: Path, with_media: bool) -> None:
        self._schema = SCHEMA.append(MEDIA_FIELD) if with_media else SCHEMA
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", write_statistics=False)
        self._rows: list[tuple[Any, ...]] = []
        self._characters = 0
        # Compression leaves the interpreter to the caller, who makes the next group meanwhile.
        self._writing = ThreadPoolExecutor(1, "write-prompts")
        self._written: Future[None] | None = None

    def add(self, prompt: Prompt) -> str:
        """Appends a prompt; returns the canonical JSON of its entry."""
        entry = canonical_json(prompt.entry)
        messages = write_column(prompt)
        texts = (prompt.prompt_id, prompt.text, prompt.answer, entry, messages)
        self._rows.append((prompt.source, prompt.index, *texts, prompt.media))
        self._characters += len(entry) + len(prompt.text) + len(messages or "")
        if len(self._rows) == GROUP_ROWS or self._characters >= GROUP_CHARACTERS:
            self._end_group()
        return entry

    def _end_group(self) -> None:
        # Files of prompts that cannot have images have no column for media.
        columns = zip(self._schema, zip(*self._rows, strict=True), strict=False)
        arrays = [column_of(values, field.type) for field, values in columns]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        self._wait()
        self._written = self._writing.submit(self._writer.write_table, table)
        self._rows = []
        self._characters = 0

    def _wait(self) -> None:
        """Waits until the last group is written. Raises what writing it raised."""
        if self._written is not None:
            self._written.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._rows:
                self._end_group()
            if error is None:
                self._wait()
        finally:
            self._writing.shutdown()
            self._writer.close()


class PromptFile:
    """The prompts of a file by row. Raises `DataError` if the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        found = self._file.schema_arrow.remove_metadata()
        if found not in (SCHEMA, SCHEMA.append(MEDIA_FIELD)):
            raise DataError(f"{path} is not a file of prompts: its columns are {', '.join(found.names)}")
        metadata = self._file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self._ends = np.cumsum(np.array([group.num_rows for group in groups], dtype=np.int64))
        largest = max((group.total_byte_size for group in groups), default=1)
        self._group = functools.lru_cache(max(1, KEPT_BYTES // largest))(self._read_group)

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __getitem__(self, row: int) -> Prompt:
        group = int(np.searchsorted(self._ends, row, side="right"))
        start = int(self._ends[group - 1]) if group else 0
        return _prompts(self._group(group).slice(row - start, 1))[0]

    def __iter__(self) -> Iterator[Prompt]:
        for group in range(len(self._ends)):
            yield from _prompts(self._read_group(group))

    def questions(self) -> Iterator[Prompt]:
        """Yields the prompts without their answers and original rows, of which nothing is read or parsed."""
        names = [name for name in self._file.schema_arrow.names if name not in ("answer", "entry")]
        for group in range(len(self._ends)):
            for row in self._read_group(group, names).to_pylist():
                if row["messages"] is None:
                    media = tuple(row.get("media", ()))
                    yield Prompt(
                        source=row["source"],
                        index=row["index"],
                        prompt_id=row["prompt_id"],
                        text=row["text"],
                        answer=None,
                        entry={},
                        media=media,
                    )
                else:
                    yield _prompt({**row, "answer": None, "entry": "{}"})

    def columns(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yields the values of some columns, in order: one tuple for each prompt."""
        for group in range(len(self._ends)):
            table = self._read_group(group, list(names))
            yield from zip(*(table.column(name).to_pylist() for name in names), strict=True)

    def column(self, name: str) -> Iterator[Any]:
        """Yields the values of a single column, in order."""
        for group in range(len(self._ends)):
            yield from self._read_group(group, [name]).column(name).to_pylist()

    def _read_group(self, group: int, columns: list[str] | None = None) -> pa.Table:
        try:
            return self._file.read_row_group(group, columns, use_threads=False)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{self._path} cannot be read: {error}") from None


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Returns the array of some values, None for none; for texts without pyarrow's own conversion, which imports pandas."""
    if pa.types.is_integer(kind):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, kind.to_pandas_dtype()))])
    if not pa.types.is_large_string(kind):
        return pa.array(values, kind)
    encoded = [b"" if value is None else value.encode() for value in values]
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    known = np.array([value is not None for value in values])
    valid = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def write_column(prompt: Prompt) -> str | None:
    """Returns the value of the column `messages`: the messages as JSON, or an object of all that a prompt has beside its text.

    Returns None for a prompt that is its text alone.
    """
    messages = [message.plain() for message in prompt.messages]
    more = plain_parts(prompt)
    if more:
        return canonical_json({"messages": messages, **more})
    return canonical_json(messages) if messages else None


def plain_parts(prompt: Prompt) -> dict[str, Any]:
    """Returns the parts of a prompt that only some prompts have, as JSON values; nothing for those that it lacks."""
    parts: dict[str, Any] = {}
    if prompt.other_answers:
        parts["other_answers"] = list(prompt.other_answers)
    if prompt.reply:
        parts["reply"] = [message.plain() for message in prompt.reply]
    if prompt.tools:
        parts["tools"] = [dict(tool) for tool in prompt.tools]
    if prompt.rendered:
        parts["rendered"] = True
    return parts


def read_column(value: str | None) -> tuple[Message, ...]:
    """Returns the messages in a value of the column `messages`."""
    return tuple(map(Message.of_plain, _parts(value)["messages"]))


def _parts(value: str | None) -> dict[str, Any]:
    read = json.loads(value) if value else []
    return read if isinstance(read, dict) else {"messages": read}


def _prompts(table: pa.Table) -> list[Prompt]:
    return [_prompt(row) for row in table.to_pylist()]


def _prompt(row: Mapping[str, Any]) -> Prompt:
    parts = _parts(row["messages"])
    return Prompt(
        source=row["source"],
        index=row["index"],
        prompt_id=row["prompt_id"],
        text=row["text"],
        answer=row["answer"],
        entry=json.loads(row["entry"]),
        media=tuple(row.get("media", ())),
        messages=tuple(map(Message.of_plain, parts["messages"])),
        other_answers=tuple(parts.get("other_answers", ())),
        reply=tuple(map(Message.of_plain, parts.get("reply", ()))),
        tools=tuple(parts.get("tools", ())),
        rendered=parts.get("rendered", False),
    )
