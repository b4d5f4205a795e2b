"""Looks at the data and the model that a first spec is written for.

Consumes paths. Produces `DataLook` and `ModelLook`. Raises `ConfigurationError`, which names the option, and
`DataError` for a row that cannot be read.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ops.starter.chat_frames import abilities_of
from ops.starter.places import DataLocation, place_of
from ops.starter.recognition.prompt_parts import IMAGE_KEYS
from ops.starter.recognition.recognised import Abilities
from yatt_core.datasets.data_files import held_out_files, training_files
from yatt_core.datasets.rows import read_entries
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.config_file import read_config
from yatt_core.models.model_folder import check_model_folder, count_parameters, positions_of
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.spec.sections.data import FileSource, Source
from yatt_core.spec.sections.model import HubModel

LOOKED_AT = 1_000
HEAVY_LOOKED_AT = 100
"""Number of rows that are looked at; heavy rows have images."""
_SOURCE: TypeAdapter[Any] = TypeAdapter(Source)


@dataclass(frozen=True, slots=True)
class DataLook:
    """The first rows of what a path stands for.

    rows: at most `LOOKED_AT`.
    complete: False if there are more rows.
    """

    place: DataLocation
    rows: tuple[Mapping[str, Any], ...]
    complete: bool

    @property
    def path(self) -> Path:
        """The path that was given."""
        return self.place.path


@dataclass(frozen=True, slots=True)
class ModelLook:
    """What a model's folder contains.

    positions: maximum number of tokens of prompt and response; None if the model has no limit.
    abilities: what it can do with rows.
    repository: the model of the Hub whose files are at the path; None for the user's own.
    """

    path: Path
    parameters: int
    positions: int | None
    abilities: Abilities
    repository: HubModel | None = None


def look_at_data(
    path: Path, split: str | None = None, subset: str | None = None, objective: str | None = None
) -> DataLook:
    """Returns the first rows of a path; the split is chosen by its name unless it is given."""
    return look_at_place(place_of(path, split, subset, objective))


def look_at_place(place: DataLocation) -> DataLook:
    """Returns the first rows of what a path or a name stands for."""
    rows = first_rows(place, {}, LOOKED_AT + 1)
    if not rows:
        raise ConfigurationError(f"--data {place.named}: the file has no rows")
    return DataLook(place, tuple(rows[:LOOKED_AT]), len(rows) <= LOOKED_AT)


def first_rows(place: DataLocation, held_out: Mapping[str, str], most: int) -> list[dict[str, Any]]:
    """Returns the first rows, with their images.

    held_out: the keys of a source that name held-out rows, to read these; empty for the training rows.
    """
    plain = _read(place, held_out, most, None)
    keys = {key for row in plain for key in row}
    for key in IMAGE_KEYS:  # columns of bytes are read only if they are asked for
        if plain and key not in keys and any(key in row for row in _read(place, held_out, 1, key)):
            return _read(place, held_out, min(most, HEAVY_LOOKED_AT + 1), key)
    return plain


def source_tree(place: DataLocation, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a source as the spec has it, with absolute paths.

    keys: further keys of the source.
    """
    if place.repository is not None:
        return {**place.repository.model_dump(mode="json"), **keys}
    tree = {"kind": place.kind, "path": str(place.path.resolve()), **place.keys, **keys}
    if held_out := tree.get("held_out_path"):
        tree["held_out_path"] = str(Path(held_out).resolve())
    return tree


def _read(place: DataLocation, held_out: Mapping[str, str], most: int, image: str | None) -> list[dict[str, Any]]:
    source: FileSource = _SOURCE.validate_python(source_tree(place, {**held_out, "image_field": image}))
    files = held_out_files(source) if held_out else training_files(source)
    found = itertools.chain.from_iterable(read_entries(file, source) for file in files)
    rows = list[dict[str, Any]]()
    for _, entry in itertools.islice(found, most):
        if isinstance(entry, DataError):
            raise entry
        rows.append(entry)
    return rows


def look_at_model(path: Path, repository: HubModel | None = None) -> ModelLook:
    """Returns what a Hugging Face folder contains; reads no weights.

    repository: the model of the Hub whose files are there, if it is one.
    """
    check_model_folder(path)
    config = read_config(path)
    tokenizer = load_tokenizer(path)
    return ModelLook(
        path=path,
        parameters=count_parameters(path),
        positions=positions_of(config),
        abilities=abilities_of(tokenizer, "vision_config" in config),
        repository=repository,
    )
