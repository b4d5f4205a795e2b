"""Tensors as one buffer: the form in which weights travel between actors (one object, zero-copy on arrival)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackedTensors:
    """index: name -> (dtype, shape, offset in bytes). data: all tensors behind one another, each at an aligned offset."""

    index: Mapping[str, tuple[str, tuple[int, ...], int]]
    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return int(self.data.nbytes)


def pack_tensors(tensors: Mapping[str, npt.NDArray[Any]]) -> PackedTensors:
    """Copies tensors into one buffer."""
    index: dict[str, tuple[str, tuple[int, ...], int]] = {}
    end = 0
    for name, array in tensors.items():
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        index[name] = (array.dtype.str, array.shape, offset)
        end = offset + array.nbytes
    data = np.empty(end, dtype=np.uint8)
    for name, array in tensors.items():
        offset = index[name][2]
        data[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return PackedTensors(index, data)


def unpack_tensors(packed: PackedTensors) -> dict[str, npt.NDArray[Any]]:
    """Views into the buffer; read-only where the buffer came out of an object store."""
    tensors = {}
    for name, (dtype, shape, offset) in packed.index.items():
        count = int(np.prod(shape, dtype=np.int64))
        tensors[name] = np.frombuffer(packed.data, np.dtype(dtype), count, offset).reshape(shape)
    return tensors
