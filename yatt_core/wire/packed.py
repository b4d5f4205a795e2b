"""Arrays as one buffer: the form in which decode batches, their answers and weights travel between actors.

Consumes named numpy arrays; produces one buffer with an index of names, dtypes, shapes and offsets. pickle's protocol 5 hands
the buffer out of band to Ray, which copies it once into its object store and maps it into every process of the node that asks
for it. What arrives are views that nobody may write to: who wants to change an array copies it. One buffer, and not one for
each array, because every buffer costs Ray a fixed price (`benchmarks.dataplane`).
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
    """index: name -> (dtype, shape, offset in bytes). data: all arrays behind one another, each at an aligned offset."""

    index: Mapping[str, tuple[str, tuple[int, ...], int]]
    data: npt.NDArray[np.uint8]

    @classmethod
    def empty(cls, layout: Layout) -> PackedArrays:
        """A buffer for arrays that are computed in place: nothing is copied before Ray's own copy."""
        index: dict[str, tuple[str, tuple[int, ...], int]] = {}
        end = 0
        for name, (dtype, shape) in layout.items():
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            index[name] = (dtype, shape, offset)
            end = offset + _count(shape) * np.dtype(dtype).itemsize
        return cls(index, np.empty(end, dtype=np.uint8))

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return int(self.data.nbytes)

    @property
    def layout(self) -> Layout:
        """What `empty` needs for a buffer of this form."""
        return {name: (dtype, shape) for name, (dtype, shape, _) in self.index.items()}

    def arrays(self) -> dict[str, Array]:
        """Views into the buffer; read-only where it came out of an object store."""
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
    """One-dimensional arrays behind one another, and the length of each; `split` undoes it."""
    lengths = np.array([len(array) for array in arrays], dtype=np.int64)
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False), lengths


def split(flat: Array, lengths: npt.NDArray[np.integer[Any]]) -> list[Array]:
    """Views of the arrays that stand behind one another."""
    return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))
