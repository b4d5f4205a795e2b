"""What an iteration of a workload learns from, as bytes: safetensors, whose contents alone decide the digest.

Consumes columns by name; produces the contents of a rank's file, and columns again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import safetensors.numpy

from yatt_core.digests import json_digest
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.workloads.contract import Array, Columns

TYPES = frozenset(
    np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    )
)  # fmt: skip
"""Numpy's types of numbers that columns may have, in either order of bytes."""
HEADER = "__metadata__"
"""A name that safetensors keeps for itself."""


COLUMNS = ".safetensors"
"""The ending of a rank's file."""
COLUMNS_DIGEST = "columns"
"""Name of the columns' digest in an update's fingerprint; an update that was skipped has none."""


def column_files(names: Iterable[str]) -> list[str]:
    """Returns those of an iteration's files that have columns, in order: not the one that says in words what they are."""
    return sorted(name for name in names if name.endswith(COLUMNS))


def encode_columns(columns: Columns, place: str) -> bytes:
    """Returns the contents of a file. Raises as `require_columns` does.

    place: what has returned the columns, for messages.
    """
    require_columns(columns, place)
    return bytes(safetensors.numpy.save({name: np.ascontiguousarray(columns[name]) for name in sorted(columns)}))


def require_columns(columns: Columns, place: str) -> None:
    """Raises `ConfigurationError` for what is no array of numbers, or has no name. place: as for `encode_columns`."""
    if not isinstance(columns, Mapping):
        raise ConfigurationError(f"{place} returned {type(columns).__name__}; expected arrays by name")
    for name, column in columns.items():
        if not isinstance(name, str) or not name or not name.isprintable() or name == HEADER:
            raise ConfigurationError(
                f"{place}: a column is called {name!r:.100}; expected a text of at least one character, all of them printable, "
                f"and not {HEADER}"
            )
        if isinstance(column, np.ma.MaskedArray):
            raise ConfigurationError(
                f"{place}: column {name!r} is a masked array, whose mask would be lost; expected a numpy array of numbers"
            )
        if not isinstance(column, np.ndarray) or column.dtype.newbyteorder("=") not in TYPES:
            found = column.dtype if isinstance(column, np.ndarray) else type(column).__name__
            raise ConfigurationError(
                f"{place}: column {name!r} is {found}; expected a numpy array of numbers: booleans, integers, or floating-point "
                "numbers of at most 64 bits"
            )


def decode_columns(data: bytes, place: str) -> dict[str, Array]:
    """Returns columns that `encode_columns` wrote. Raises `DataError` for other bytes.

    place: where they come from, for messages.
    """
    try:
        return dict(safetensors.numpy.load(data))
    except safetensors.SafetensorError as error:
        raise DataError(f"{place}: is not a file of columns: {error}") from error


def columns_digest(files: Mapping[str, str]) -> str:
    """Returns the digest of an iteration's columns. files: the SHA-256 of each of its files by name."""
    return json_digest({name: files[name] for name in column_files(files)})
