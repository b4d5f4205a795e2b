"""Arrays in a single buffer: the format in which decode batches, responses and weights are sent between actors.

Consumes named numpy arrays. Produces one buffer with an index of names, dtypes, shapes and offsets. pickle
protocol 5 passes the buffer out of band to Ray, which copies it once into its object store and maps it into
every process of the node that requests it. The receiver gets read-only views and must copy an array to change
it. There is one buffer instead of one per array, because every buffer has a fixed cost in Ray
(`benchmarks.dataplane`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64

Array = npt.NDArray[Any]
Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""name -> (dtype in numpy's notation, shape)."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedArrays:
    """Named arrays in one buffer.

    index: name -> (dtype, shape, offset in bytes).
    data: all arrays, concatenated at aligned offsets.
    """

    index: Mapping[str, tuple[str, tuple[int, ...], int]]
    data: npt.NDArray[np.uint8]

    @classmethod
    def empty(cls, layout: Layout) -> PackedArrays:
        """Returns a buffer for arrays that are computed in place, so that nothing is copied before Ray's own copy."""
        index: dict[str, tuple[str, tuple[int, ...], int]] = {}
        end = 0
        for name, (dtype, shape) in layout.items():
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            index[name] = (dtype, shape, offset)
            end = offset + _count(shape) * np.dtype(dtype).itemsize
        return cls(index, np.empty(end, dtype=np.uint8))

    @property
    def nbytes(self) -> int:
        """Size of the buffer in bytes."""
        return int(self.data.nbytes)

    @property
    def layout(self) -> Layout:
        """The argument for which `empty` creates a buffer like this one."""
        return {name: (dtype, shape) for name, (dtype, shape, _) in self.index.items()}

    def arrays(self) -> dict[str, Array]:
        """Returns views into the buffer; read-only if it came from an object store."""
        return {
            name: np.frombuffer(self.data, np.dtype(dtype), _count(shape), offset).reshape(shape)
            for name, (dtype, shape, offset) in self.index.items()
        }


def pack_arrays(arrays: Mapping[str, Array]) -> PackedArrays:
    """Copies arrays of any layout into one buffer."""
    packed = PackedArrays.empty({name: (array.dtype.str, array.shape) for name, array in arrays.items()})
    for name, place in packed.arrays().items():
        np.copyto(place, arrays[name])
    return packed


def flatten(arrays: Sequence[Array], dtype: npt.DTypeLike) -> tuple[Array, npt.NDArray[np.int64]]:
    """Concatenates one-dimensional arrays; returns the result and the length of each array. `split` is the inverse."""
    lengths = np.array([len(array) for array in arrays], dtype=np.int64)
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False), lengths


def split(flat: Array, lengths: npt.NDArray[np.integer[Any]]) -> list[Array]:
    """Returns the arrays that `flatten` concatenated, as views."""
    return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))
