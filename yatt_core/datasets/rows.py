"""Rows of file sources: read one at a time and checked, including their images.

Consumes a source of the spec and a `Keep`, which receives the bytes of each image. Produces `Row`s in file
order. Only the current row is held in memory. Raises `ConfigurationError` for missing files, and `DataError`
with file and row for a row that cannot be used.
"""

from __future__ import annotations

import difflib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from yatt_core.datasets import jsonl, tables
from yatt_core.datasets.data_files import DataFile, held_out_files, training_files
from yatt_core.datasets.local_files import read_within
from yatt_core.datasets.own_rows import own_rows
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.problems import LISTED
from yatt_core.progress import log_progress
from yatt_core.prompts.conversations import read_messages, transcript
from yatt_core.prompts.media import MAX_BYTES
from yatt_core.prompts.prompt import Message
from yatt_core.spec.sections.data import FileSource, FunctionSource

log = logging.getLogger(__name__)
Entry = dict[str, Any] | DataError
"""A row as plain values, or the reason why it cannot be read."""
Split = Literal["train", "held_out"]
Keep = Callable[[bytes, str], str]
"""Receives the bytes of an image and the place where they were found; returns their content address."""
ROWS_PER_WORD, HEAVY_ROWS_PER_WORD = 100_000, 5_000
"""Number of rows between two progress log lines; heavy rows have images."""


ROWS_AFTER_ERROR = 1_000
"""Number of rows after an unusable one that are checked, so that one attempt reports several."""


@dataclass(frozen=True, slots=True)
class Row:
    """A task that is not yet assigned to a part of the inputs (training, held-out or probe).

    origin: where the row comes from: its split, its file or task, and its number.
    entry: the original row as plain JSON values.
    media: addresses of its images.
    messages: the conversation; empty for a single question.
    """

    origin: str
    text: str
    answer: str | None
    entry: Mapping[str, Any]
    media: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()


def splits_of(source: FileSource) -> tuple[Split, ...]:
    """Returns the splits that have their own files."""
    return ("train", "held_out") if held_out_files(source) else ("train",)


def read_rows(source: FileSource, split: Split, keep: Keep) -> Iterator[Row]:
    """Yields all rows of a split."""
    files = training_files(source) if split == "train" else held_out_files(source)
    step = ROWS_PER_WORD if source.image_field is None else HEAVY_ROWS_PER_WORD
    count = 0
    answer_known = source.answer_field == FileSource.model_fields["answer_field"].default
    read = ((file, number, entry) for file in files for number, entry in read_entries(file, source))
    for file, number, entry in read:
        try:
            row = _row(file, number, entry, f"{split}/{file.name}:{number}", source, keep)
        except DataError as error:
            raise _with_following(error, itertools.islice(read, ROWS_AFTER_ERROR), source, keep) from None
        answer_known = answer_known or source.answer_field in row.entry
        yield row
        count += 1
        if count % step == 0:
            log_progress(log, f"{file.path}: {count:,} {split} rows read")
    if not count:
        raise DataError(f"{files[0].path}: the file has no rows")
    if not answer_known:  # a row may lack the key, but a key that is set explicitly must occur in some rows
        raise DataError(
            f"{files[0].path}: none of the {count:,} {split} rows has the key {source.answer_field!r} for the answer "
            f"(data.sources answer_field); {_hint(source.answer_field, row.entry)}"
        )


def _with_following(
    error: DataError, following: Iterable[tuple[DataFile, int, Entry]], source: FileSource, keep: Keep
) -> DataError:
    """Returns an error that also names the next rows that cannot be used."""
    errors = [error]
    with suppress(DataError, ConfigurationError):  # the file ends the reading; its first unusable row is known
        for file, number, entry in following:
            try:
                _row(file, number, entry, "", source, keep)
            except DataError as other:
                errors.append(other)
                if len(errors) == LISTED:
                    break
    return error if len(errors) == 1 else DataError("\n".join(map(str, errors)))


def read_entries(file: DataFile, source: FileSource) -> Iterator[tuple[int, Entry]]:
    """Yields the number (from 1) and the values of each row of a file, or why a row has none; nothing is checked."""
    if isinstance(source, FunctionSource):
        return own_rows(source, file.format)
    heavy = source.image_field is not None
    prompt = source.prompt_field or source.answer_field
    fields = {prompt, source.answer_field, source.image_field or prompt}
    match file.format:
        case "parquet":
            return tables.read_parquet(file.path, prompt, fields, heavy)
        case "arrow":
            return tables.read_arrow_stream(file.path, fields, heavy)
        case "csv":
            return tables.read_csv(file.path)
        case _:
            return jsonl.read_objects(file.path)


def _row(file: DataFile, number: int, entry: Entry, origin: str, source: FileSource, keep: Keep) -> Row:
    if isinstance(entry, DataError):
        raise entry
    place = f"{file.path}:{number}"
    text, messages = _prompt(entry, place, source.prompt_field or source.answer_field)
    answer = entry.get(source.answer_field)
    if answer is not None and not isinstance(answer, str):
        raise DataError(f"{place}: {source.answer_field!r} is {type(answer).__name__}; expected the answer as a string")
    if source.image_field is None:
        return Row(origin, text, answer, entry, messages=messages)
    given = _value(entry, place, source.image_field, "image_field")
    images = given if isinstance(given, list) else [] if given is None else [given]
    media = []
    for count, image in enumerate(images, start=1):
        what = f"{place}: image {count} of {source.image_field!r}"
        media.append(keep(_image_bytes(image, file.path.parent, what), what))
    if any(not isinstance(image, str) for image in images):
        entry = {key: value for key, value in entry.items() if key != source.image_field}
    return Row(origin, text, answer, entry, tuple(media), messages)


def _prompt(entry: Mapping[str, Any], place: str, key: str) -> tuple[str, tuple[Message, ...]]:
    """Returns the text of the prompt, and its messages if it is a conversation of several."""
    value = _value(entry, place, key, "prompt_field")
    if isinstance(value, list):
        try:
            messages = read_messages(value)
        except DataError as error:
            raise DataError(f"{place}: {key!r}: {error}") from None
        return (messages[0].content, ()) if len(messages) == 1 else (transcript(messages), messages)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{place}: {key!r} must be a non-empty string or a list of messages")
    return value, ()


def _value(entry: Mapping[str, Any], place: str, key: str, field: str) -> Any:
    if key not in entry:
        what = field.removesuffix("_field")
        raise DataError(
            f"{place}: the row has no key {key!r} for the {what} (data.sources {field}); {_hint(key, entry)}"
        )
    return entry[key]


def _hint(key: str, entry: Mapping[str, Any]) -> str:
    """Returns a hint about the key that may have been meant instead of a missing one."""
    near = difflib.get_close_matches(key, entry, n=1)
    return f"did you mean {near[0]!r}?" if near else f"its keys: {', '.join(entry) or 'none'}"


def _image_bytes(image: Any, folder: Path, what: str) -> bytes:
    """Returns the bytes of an image given as bytes, as a path, or as the Image feature of `datasets`, {bytes, path}."""
    if isinstance(image, dict):
        image = image.get("bytes") if image.get("bytes") is not None else image.get("path")
    if isinstance(image, bytes):
        return image
    if not isinstance(image, str):
        raise DataError(f"{what} is {type(image).__name__}; expected a path, or the bytes of a PNG or JPEG file")
    try:
        return read_within(folder, image, MAX_BYTES)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
