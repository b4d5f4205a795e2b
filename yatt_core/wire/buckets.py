"""Weights in buckets of bounded size: the format in which a trainer sends them to the rollout engines.

Consumes named arrays one at a time. Produces buckets, each with one buffer that is filled as the arrays arrive,
so that at most one array and one bucket are held in memory. A tensor that fits in a bucket is sent whole, a
larger one in pieces. The boundaries depend only on names, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.wire.packed import ALIGNMENT

Array = npt.NDArray[Any]
NamedArrays = Iterable[tuple[str, Array]]
BUCKET_BYTES = 256 << 20
"""Default size of a bucket in bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of adjacent numbers of a tensor.

    shape: shape of the whole tensor.
    start: index of the first number, in C order.
    numbers: one-dimensional.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    numbers: Array


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a piece in a bucket.

    offset: in bytes.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    dtype: str
    count: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class WeightBucket:
    """One bucket of a stream of weights.

    number: index from 0.
    last: True for the last bucket of the stream.
    data: the concatenated pieces, each at an aligned offset.
    """

    number: int
    last: bool
    places: tuple[_Place, ...]
    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Size of the buffer in bytes."""
        return int(self.data.nbytes)

    def pieces(self) -> Iterator[Piece]:
        """Yields views into the buffer; read-only if it came from an object store."""
        for place in self.places:
            numbers = np.frombuffer(self.data, np.dtype(place.dtype), place.count, place.offset)
            yield Piece(place.name, place.shape, place.start, numbers)


def buckets_of(tensors: NamedArrays, most_bytes: int = BUCKET_BYTES, keep: bool = True) -> Iterator[WeightBucket]:
    """Splits a stream of tensors into one or more buckets.

    most_bytes: maximum size of a bucket; at least the size of one number.
    keep: False to go through the tensors without sending them; the buckets are then empty.
    """
    filling = _Filling(0, most_bytes, keep)
    for name, array in tensors:
        flat, start = array.reshape(-1), 0
        while (start := start + filling.add(name, array.shape, flat, start)) < len(flat):
            yield filling.bucket(last=False)
            filling = _Filling(filling.number + 1, most_bytes, keep)
    yield filling.bucket(last=True)


class _Filling:
    """A bucket being filled."""

    def __init__(self, number: int, most_bytes: int, keep: bool) -> None:
        self.number, self._most, self._end = number, most_bytes, 0
        self._places: list[_Place] = []
        # Pages are allocated on first write: a small model takes no more memory than its size.
        self._data = np.empty(most_bytes if keep else 0, dtype=np.uint8)
        self._keep = keep

    def add(self, name: str, shape: tuple[int, ...], flat: Array, start: int) -> int:
        """Adds the numbers from `start` on that fit, and returns their count."""
        offset = -(-self._end // ALIGNMENT) * ALIGNMENT
        room = max(0, self._most - offset)
        if self._end and room < flat.nbytes <= self._most:
            return 0
        count = min(len(flat) - start, room // flat.itemsize)
        if count or not len(flat):
            self._places.append(_Place(name, tuple(shape), start, flat.dtype.str, count, offset if count else 0))
            self._end = offset + count * flat.itemsize
            if self._keep and count:
                np.copyto(np.frombuffer(self._data, flat.dtype, count, offset), flat[start : start + count])
        return count

    def bucket(self, last: bool) -> WeightBucket:
        """Returns the finished bucket."""
        places = tuple(self._places) if self._keep else ()
        return WeightBucket(self.number, last, places, self._data[: self._end])
