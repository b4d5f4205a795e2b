"""Weights in buckets of bounded size: the form in which they travel from a trainer to the rollout engines.

Consumes named arrays one after another; produces buckets, each with one buffer that is filled as the arrays come, so that never
more than one array and one bucket are held. A tensor that has room in a bucket travels whole, a larger one in pieces. Where a
stream is cut follows its names, shapes and dtypes alone.
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
"""Of a bucket, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some numbers of a tensor. shape: of the whole tensor. start: the first of them, in C order. numbers: one-dimensional."""

    name: str
    shape: tuple[int, ...]
    start: int
    numbers: Array


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a piece lies in a bucket. offset: in bytes."""

    name: str
    shape: tuple[int, ...]
    start: int
    dtype: str
    count: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class WeightBucket:
    """number: counted from 0. last: nothing comes behind it. data: the pieces behind one another, at aligned offsets."""

    number: int
    last: bool
    places: tuple[_Place, ...]
    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return int(self.data.nbytes)

    def pieces(self) -> Iterator[Piece]:
        """Views into the buffer; read-only where it came out of an object store."""
        for place in self.places:
            numbers = np.frombuffer(self.data, np.dtype(place.dtype), place.count, place.offset)
            yield Piece(place.name, place.shape, place.start, numbers)


def buckets_of(tensors: NamedArrays, most_bytes: int = BUCKET_BYTES, keep: bool = True) -> Iterator[WeightBucket]:
    """Cuts a stream of tensors into buckets, of which there is at least one. most_bytes: of a bucket, a number's at least.

    keep: false for who has to go through the tensors without sending them; its buckets are empty.
    """
    filling = _Filling(0, most_bytes, keep)
    for name, array in tensors:
        flat, start = array.reshape(-1), 0
        while (start := start + filling.add(name, array.shape, flat, start)) < len(flat):
            yield filling.bucket(last=False)
            filling = _Filling(filling.number + 1, most_bytes, keep)
    yield filling.bucket(last=True)


class _Filling:
    """A bucket while it is filled."""

    def __init__(self, number: int, most_bytes: int, keep: bool) -> None:
        self.number, self._most, self._end = number, most_bytes, 0
        self._places: list[_Place] = []
        # Memory that nobody has written to is none: a small model takes no more than its size.
        self._data = np.empty(most_bytes if keep else 0, dtype=np.uint8)
        self._keep = keep

    def add(self, name: str, shape: tuple[int, ...], flat: Array, start: int) -> int:
        """Takes in as many numbers from `start` on as belong here, and returns how many these are."""
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
        """What has come together."""
        places = tuple(self._places) if self._keep else ()
        return WeightBucket(self.number, last, places, self._data[: self._end])
