"""The shards that samplers have sealed, as what a trainer's rank has in place of its own samples.

Consumes references to sealed shards, in their order. Produces the columns of the shards that are a rank's, joined row by row, and
the images of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.sampled import read_sampled
from yatt_core.protocols.receipts import ShardRef
from yatt_core.workloads.columns import decode_columns
from yatt_core.workloads.contract import Array

COLUMNS_FILE = "columns.safetensors"
IMAGES_FILE = "images.safetensors"
"""The encoded images of a shard; workloads without images have no such file."""


def joined_columns(run_folder: Path, shards: Sequence[ShardRef], own: range) -> dict[str, Array]:
    """Returns the columns of some of an iteration's shards, one after another.

    own: their numbers; if there are none, the columns have no rows.

    Raises `DataError` for a damaged shard, `ConfigurationError` for shards that do not have the same columns, or have them with
    other types or shapes of rows.
    """
    numbers = own or range(1)
    parts = [_columns(run_folder, shards[number]) for number in numbers]
    forms = [{name: _form(column) for name, column in part.items()} for part in parts]
    for number, form in zip(numbers, forms, strict=True):
        if form != forms[0]:
            raise ConfigurationError(
                f"workload.kind: sample_shard returned other columns for shard {number} than for shard {numbers[0]}: "
                f"{_in_words(form)}; expected {_in_words(forms[0])}"
            )
    rows = slice(None) if own else slice(0)
    return {name: np.concatenate([part[name][rows] for part in parts]) for name in parts[0]}


def images_of(run_folder: Path, shards: Sequence[ShardRef]) -> list[bytes]:
    """Returns the encoded images of all shards, in their order; none if the workload shows none.

    Raises `DataError` for a damaged shard.
    """
    found = [read_sampled(run_folder, shard, IMAGES_FILE) for shard in shards]
    return [data for data in found if data is not None]


def _form(column: Array) -> str:
    """Returns what a column's rows have in common with those of other shards."""
    return f"{column.dtype} [rows{''.join(f', {size}' for size in column.shape[1:])}]"


def _in_words(form: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {each}" for name, each in sorted(form.items()))


def _columns(run_folder: Path, shard: ShardRef) -> dict[str, Array]:
    data = read_sampled(run_folder, shard, COLUMNS_FILE)
    if data is None:
        raise DataError(f"{run_folder / shard.folder}: has no {COLUMNS_FILE}")
    return decode_columns(data, f"{shard.folder}/{COLUMNS_FILE}")
