"""Weights in buckets of bounded size: the format in which a trainer sends them to the rollout engines.

Consumes named arrays one at a time. Produces buckets of rectangles of tensors, each with one buffer that is filled as
the arrays arrive, so that at most one array and one bucket are held in memory, and with a digest that the receiver
checks. A tensor that fits in a bucket is sent whole, a larger one in several rectangles. The boundaries depend only on
names, shapes and types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.digests import json_digest
from yatt_core.errors import InfrastructureError
from yatt_core.wire.number_types import Array, put_rounded, storage_type, type_sent
from yatt_core.wire.packed import ALIGNMENT
from yatt_core.wire.parts import Box, Sizes, cut_box, whole_box

NamedArrays = Iterable[tuple[str, Array]]
BUCKET_BYTES = 256 << 20
"""Default size of a bucket in bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of a tensor.

    shape: shape of the whole tensor.
    kind: type of the numbers: numpy's name, or `bfloat16`.
    values: in the rectangle's shape; the bits of bfloat16 are unsigned integers.
    """

    name: str
    shape: Sizes
    box: Box
    kind: str
    values: Array


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a rectangle in a bucket.

    name, shape, box, kind: as in `Piece`.
    offset: in bytes.
    """

    name: str
    shape: Sizes
    box: Box
    kind: str
    offset: int

    @property
    def count(self) -> int:
        """The number of numbers."""
        return prod(self.box.sizes)

    @property
    def nbytes(self) -> int:
        """Size of the numbers in bytes."""
        return self.count * storage_type(self.kind).itemsize

    def of(self, data: npt.NDArray[np.uint8]) -> Array:
        """Returns the numbers as a view into a bucket's buffer."""
        return np.frombuffer(data, storage_type(self.kind), self.count, self.offset).reshape(self.box.sizes)


@dataclass(frozen=True, slots=True, eq=False)
class WeightBucket:
    """One bucket of a stream of weights.

    number: index from 0.
    last: True for the last bucket of the stream.
    data: the concatenated rectangles, each at an aligned offset.
    digest: `bucket_digest` of the contents, computed by the sender.
    """

    number: int
    last: bool
    places: tuple[Place, ...]
    data: npt.NDArray[np.uint8]
    digest: str

    @property
    def nbytes(self) -> int:
        """Size of the buffer in bytes."""
        return int(self.data.nbytes)

    def require_intact(self) -> None:
        """Raises `InfrastructureError` if the contents do not match the digest."""
        if bucket_digest(self.number, self.last, self.places, self.data) != self.digest:
            raise InfrastructureError(
                f"weights: bucket {self.number} of {self.nbytes} bytes does not match its digest; it was damaged on its way"
            )

    def pieces(self) -> Iterator[Piece]:
        """Yields views into the buffer; read-only if it came from an object store."""
        for place in self.places:
            yield Piece(place.name, place.shape, place.box, place.kind, place.of(self.data))


def bucket_digest(number: int, last: bool, places: Iterable[Place], data: npt.NDArray[np.uint8]) -> str:
    """Returns the sha256 of a bucket's number, places and bytes."""
    listed = [[each.name, each.shape, each.box.offsets, each.box.sizes, each.kind, each.offset] for each in places]
    digest = hashlib.sha256(json_digest([number, last, listed]).encode())
    digest.update(data.data)
    return digest.hexdigest()


def aligned(end: int) -> int:
    """Returns the first offset at or after `end` at which a rectangle may begin."""
    return -(-end // ALIGNMENT) * ALIGNMENT


def buckets_of(
    tensors: NamedArrays, most_bytes: int = BUCKET_BYTES, keep: bool = True, rounded_to: str | None = None
) -> Iterator[WeightBucket]:
    """Splits a stream of tensors into one or more buckets.

    most_bytes: maximum size of a bucket; at least the size of one number.
    keep: False to go through the tensors without sending them; the buckets are then empty.
    rounded_to: type to which floating-point numbers are rounded; None to send them as they are.
    """
    filling = _Filling(0, most_bytes, keep)
    for name, array in tensors:
        kind = type_sent(array, rounded_to)
        for box in cut_box(whole_box(array.shape), most_bytes // storage_type(kind).itemsize):
            place = filling.place(name, array.shape, box, kind)
            if place is None:
                yield filling.bucket(last=False)
                filling = _Filling(filling.number + 1, most_bytes, keep)
                place = filling.place(name, array.shape, box, kind)
            assert place is not None, "a rectangle fits into an empty bucket"
            # With the ellipsis, a tensor without dimensions stays an array.
            inside: Any = (*box.slices((0,) * array.ndim), ...)
            filling.put(place, array[inside])
    yield filling.bucket(last=True)


class _Filling:
    """A bucket being filled."""

    def __init__(self, number: int, most_bytes: int, keep: bool) -> None:
        self.number, self._most, self._end = number, most_bytes, 0
        self._places: list[Place] = []
        # Pages are allocated on first write: a small model takes no more memory than its size.
        self._data = np.empty(most_bytes if keep else 0, dtype=np.uint8)
        self._keep = keep

    def place(self, name: str, shape: Sizes, box: Box, kind: str) -> Place | None:
        """Returns where a rectangle goes; None if there is no room for it."""
        found = Place(name, tuple(shape), box, kind, aligned(self._end) if prod(box.sizes) else 0)
        if found.nbytes and found.offset + found.nbytes > self._most:
            return None
        self._end = max(self._end, found.offset + found.nbytes)
        return found

    def put(self, place: Place, values: Array) -> None:
        """Copies a rectangle's numbers to its place."""
        if self._keep:
            self._places.append(place)
            put_rounded(place.of(self._data), values, place.kind)

    def bucket(self, last: bool) -> WeightBucket:
        """Returns the finished bucket. The gaps between its rectangles are zero."""
        places, data = tuple(self._places), self._data[: self._end if self._keep else 0]
        clear_gaps(places, data)
        return WeightBucket(self.number, last, places, data, bucket_digest(self.number, last, places, data))


def clear_gaps(places: Iterable[Place], data: npt.NDArray[np.uint8]) -> None:
    """Sets the bytes between the rectangles to zero, so that equal weights have equal digests."""
    end = 0
    for place in places:
        data[end : place.offset] = 0
        end = max(end, place.offset + place.nbytes)
