"""Arrays in the files of a run's inputs, and arrays that somebody else has written.

Consumes arrays, or the path of an `.npy` file. Produces safetensors, and a checked array.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Array = npt.NDArray[Any]


def save_arrays(arrays: Mapping[str, Array], path: Path) -> None:
    """Writes arrays as safetensors, row by row: the library writes memory as it lies, whatever the order of its dimensions."""
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def read_array(path: Path) -> Array:
    """Reads an `.npy` file; what was pickled is not.

    Raises `ValueError` for what is no array, and for a file that is shorter than its array.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise ValueError("it is no regular file")
        found = np.load(
            path, mmap_mode="r", allow_pickle=False
        )  # mapped, as reading would allocate what the header claims
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path.absolute()}: cannot be read as an array: {error}") from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise ValueError(f"{path}: is an archive of arrays; expected one array, as numpy.save writes it")
    return np.array(found, order="C")
