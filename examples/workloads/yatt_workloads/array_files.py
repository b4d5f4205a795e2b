"""Arrays in the files of a run's inputs, and arrays that somebody else has written.

Consumes arrays, or the path of an `.npy` file. Produces safetensors, and a checked array.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from yatt_workloads.given_files import readable

Array = npt.NDArray[Any]

MAGIC = b"\x93NUMPY"
ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of an `.npz` file."""
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Readers of the header by version; numpy needs later versions for records alone, which are no numbers."""
NUMBERS = "biufc"
"""Kinds of numpy's types: truth values, integers, floating-point and complex numbers."""
EXPECTED = "expected an array of numbers, as numpy.save writes it"


def save_arrays(arrays: Mapping[str, Array], path: Path) -> None:
    """Writes arrays as safetensors, row by row: the library writes memory as it lies, whatever the order of its dimensions."""
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def read_array(path: Path) -> Array:
    """Reads an `.npy` file; what was pickled is not.

    Raises `ValueError` for what is no array of numbers, and for a file that is shorter or longer than its array. Nothing is
    allocated for what the header claims and the file does not have.
    """
    with readable(path), path.open("rb") as stream:
        _require_array(stream, path)
        stream.seek(0)
        try:
            found = np.load(stream, allow_pickle=False)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}: its header has a shape that no array has; {EXPECTED}") from error
    return np.array(found, order="C")


def _require_array(stream: BinaryIO, path: Path) -> None:
    """Raises `ValueError` unless a file is one array of numbers from its beginning to its end."""
    begins = stream.read(len(MAGIC))
    if begins.startswith(ARCHIVES):
        raise ValueError(f"{path}: is an archive of arrays; expected one array, as numpy.save writes it")
    if begins != MAGIC:
        raise ValueError(f"{path}: is no .npy file; {EXPECTED}")
    stream.seek(0)
    try:
        version = np.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"version {version[0]}.{version[1]}")
        shape, _, kind = HEADERS[version](stream)
    except (ValueError, TypeError, TokenError, RecursionError) as error:
        raise ValueError(f"{path}: its header is cut off or broken; {EXPECTED}") from error
    if kind.kind not in NUMBERS:
        held = "objects" if kind.hasobject else f"values of type {kind}"
        raise ValueError(f"{path}: holds {held} instead of numbers; {EXPECTED}")
    size = math.prod(shape) * kind.itemsize
    there = os.fstat(stream.fileno()).st_size - stream.tell()
    if there < size:
        raise ValueError(f"{path}: is cut off: its array has {size} bytes, of which {there} are there")
    if there > size:
        raise ValueError(f"{path}: has {there - size} bytes behind its array; expected none")
