"""Rows of file sources: read one at a time and checked, including their images.

Consumes a source of the spec and a `Keep`, which receives the bytes of each image. Produces `Row`s in file
order. Only the current row is held in memory. Raises `ConfigurationError` for missing files, and `DataError`
with file and row for a row that cannot be used.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from yatt_core.datasets import jsonl, tables
from yatt_core.datasets.columns import SourceKeys
from yatt_core.datasets.data_files import DataFile, held_out_files, training_files
from yatt_core.datasets.local_files import read_within
from yatt_core.datasets.own_rows import own_rows
from yatt_core.datasets.questions import prompt_keys, read_question, read_tools
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.problems import LISTED
from yatt_core.progress import log_progress
from yatt_core.prompts.keys import MISSING, hint, value_at, without
from yatt_core.prompts.media import MAX_BYTES
from yatt_core.prompts.prompt import Message
from yatt_core.spec.sections.data import FileSource, FunctionSource

log = logging.getLogger(__name__)
Entry = dict[str, Any] | DataError
"""A row as plain values, or the reason why it cannot be read."""
Split = Literal["train", "held_out"]
Keep = Callable[[bytes, str], str]
"""Receives the bytes of an image and the place where they were found; returns their content address."""
ROWS_PER_WORD = 100_000
HEAVY_ROWS_PER_WORD = 5_000
"""Number of rows between two progress log lines; heavy rows have images."""


ROWS_AFTER_ERROR = 1_000
"""Number of rows after an unusable one that are checked, so that one attempt reports several."""


@dataclass(frozen=True, slots=True)
class Row:
    """A task that is not yet assigned to a part of the inputs (training, held-out or probe).

    origin: where the row comes from: its split, its file or task, and its number.
    text: the question, or the transcript of a conversation; empty if the answer is learnt as a whole.
    answer: the reference answer; None if the row has none.
    entry: the original row as plain JSON values.
    media: addresses of its images.
    messages: the conversation; empty for a single question.
    other_answers: further right answers.
    reply: the messages of a demonstration, from the assistant's first after the prompt to its last.
    tools: descriptions of the tools that the conversation may call.
    rendered: whether the text is what the model reads.
    """

    origin: str
    text: str
    answer: str | None
    entry: Mapping[str, Any]
    media: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    other_answers: tuple[str, ...] = ()
    reply: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    rendered: bool = False


def splits_of(source: FileSource) -> tuple[Split, ...]:
    """Returns the splits that have their own files."""
    return ("train", "held_out") if held_out_files(source) else ("train",)


def read_rows(source: FileSource, split: Split, keep: Keep) -> Iterator[Row]:
    """Yields all rows of a split."""
    files = training_files(source) if split == "train" else held_out_files(source)
    step = ROWS_PER_WORD if source.image_field is None else HEAVY_ROWS_PER_WORD
    count = 0
    unseen = _keys_to_see(source)
    read = ((file, number, entry) for file in files for number, entry in read_entries(file, source))
    for file, number, entry in read:
        try:
            row = _row(
                file=file, number=number, entry=entry, origin=f"{split}/{file.name}:{number}", source=source, keep=keep
            )
        except DataError as error:
            raise _with_following(error, itertools.islice(read, ROWS_AFTER_ERROR), source, keep) from None
        unseen = {key: field for key, field in unseen.items() if value_at(row.entry, key, MISSING) is MISSING}
        yield row
        count += 1
        if count % step == 0:
            log_progress(log, f"{file.path}: {count:,} {split} rows read")
    if not count:
        raise DataError(f"{files[0].path}: the file has no rows")
    for key, field in unseen.items():
        raise DataError(
            f"{files[0].path}: none of the {count:,} {split} rows has the key {key!r} for the {field.removesuffix('_field')} "
            f"(data.sources {field}); {hint(key, row.entry)}"
        )


def _keys_to_see(source: FileSource) -> dict[str, str]:
    """Returns the keys that a row may lack, but that must occur in some rows because they are set explicitly."""
    fields = {
        field: getattr(source, field)
        for field in ("answer_field", "system_field", "tools_field")
        if getattr(source, field) != FileSource.model_fields[field].default
    }
    return {key: field for field, key in fields.items()}


def _with_following(
    error: DataError, following: Iterable[tuple[DataFile, int, Entry]], source: FileSource, keep: Keep
) -> DataError:
    """Returns an error that also names the next rows that cannot be used."""
    errors = [error]
    with suppress(DataError, ConfigurationError):  # the file ends the reading; its first unusable row is known
        for file, number, entry in following:
            try:
                _row(file=file, number=number, entry=entry, origin="", source=source, keep=keep)
            except DataError as other:
                errors.append(other)
                if len(errors) == LISTED:
                    break
    return error if len(errors) == 1 else DataError("\n".join(map(str, errors)))


def read_entries(file: DataFile, source: FileSource) -> Iterator[tuple[int, Entry]]:
    """Yields the number (from 1) and the values of each row of a file, or why a row has none; nothing is checked."""
    if isinstance(source, FunctionSource):
        return own_rows(source, file.format)
    match file.format:
        case "parquet":
            return tables.read_parquet(file.path, _wanted(source))
        case "arrow":
            return tables.read_arrow_stream(file.path, _wanted(source))
        case "csv":
            return tables.read_csv(file.path)
        case _:
            keys = (*prompt_keys(source), source.answer_field, source.chosen_field, source.rejected_field)
            return jsonl.read_objects(file.path, keys)


def _wanted(source: FileSource) -> SourceKeys:
    """Returns the keys by which a table's columns are read."""
    prompts = prompt_keys(source)
    further = (key for key in (source.system_field, source.tools_field) if key is not None)
    return SourceKeys(
        prompts=prompts,
        given_back=(*prompts, source.answer_field, source.chosen_field, source.rejected_field),
        checked=(*prompts, source.answer_field, *further),
        images=source.image_field,
    )


def _row(file: DataFile, number: int, entry: Entry, origin: str, source: FileSource, keep: Keep) -> Row:
    if isinstance(entry, DataError):
        raise entry
    place = f"{file.path}:{number}"
    try:
        asked = read_question(entry, source)
        tools = read_tools(entry, source)
    except DataError as error:
        raise DataError(f"{place}: {error}") from None
    media, entry = _images(file=file, place=place, entry=entry, source=source, keep=keep)
    return Row(
        origin=origin,
        text=asked.text,
        answer=asked.answers.first,
        entry=entry,
        media=media,
        messages=asked.messages,
        other_answers=asked.answers.others,
        reply=asked.reply,
        tools=tools,
        rendered=source.rendered,
    )


def _images(
    file: DataFile, place: str, entry: dict[str, Any], source: FileSource, keep: Keep
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the addresses of a row's images, and the row without their bytes."""
    key = source.image_field
    if key is None:
        return (), entry
    given = value_at(entry, key, MISSING)
    if given is MISSING:
        raise DataError(
            f"{place}: the row has no key {key!r} for the image (data.sources image_field); {hint(key, entry)}"
        )
    images = given if isinstance(given, list) else [] if given is None else [given]
    media = []
    for count, image in enumerate(images, start=1):
        what = f"{place}: image {count} of {key!r}"
        media.append(keep(_image_bytes(image, file.path.parent, what), what))
    if any(not isinstance(image, str) for image in images):
        entry = without(entry, key)
    return tuple(media), entry


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
