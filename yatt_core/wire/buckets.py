"""Weights in buckets of bounded size: the format in which a trainer sends them to the rollout engines.

Consumes named arrays one at a time. Produces buckets of rectangles of tensors, each with one buffer that is filled as
the arrays arrive, so that at most one array and one bucket are held in memory, and with a digest that the receiver
checks. A tensor that fits in a bucket is sent whole, a larger one in several rectangles. The boundaries depend only on
names, shapes and types. The buffer is an array of numpy, or a tensor of torch on the device where the bucket has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from yatt_core.digests import json_digest
from yatt_core.errors import InfrastructureError
from yatt_core.wire.bit_sums import block_sums
from yatt_core.wire.changes import decode_positions, decode_steps, decompress
from yatt_core.wire.number_types import Array, storage_type
from yatt_core.wire.packed import ALIGNMENT
from yatt_core.wire.parts import Rectangle, cut_box, whole_box

if TYPE_CHECKING:
    import torch

    BucketData = npt.NDArray[np.uint8] | torch.Tensor
    """The bytes of a bucket on the host, or on the device where it has arrived."""

NamedArrays = Iterable[tuple[str, Array]]
BucketBuffer = npt.NDArray[np.uint8]
"""The bytes of a bucket in host memory, or memory for one."""
DIGEST_BYTES = 32
"""Bytes of `bucket_digest`, which follow a bucket on its way."""
BUCKET_BYTES = 256 << 20
"""Default size of a bucket in bytes."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Numbers of a tensor that have changed.

    at: their positions in the tensor, in C order.
    steps: by how much the bits of each have changed, as integers; 0 for a number that has changed too much.
    """

    at: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Piece(Rectangle):
    """The numbers of a rectangle, or what has changed in it.

    values: in the rectangle's shape; in an array, the bits of bfloat16 are unsigned integers.
    changed: what has changed, if that is all there is; `values` then has the numbers that have changed too much.
    """

    values: Array | torch.Tensor
    changed: Changed | None = None


@dataclass(frozen=True, slots=True)
class Place(Rectangle):
    """The place of a rectangle in a bucket.

    offset: in bytes.
    changes: number of numbers that have changed; -1 if all numbers are there.
    far: number of those that are sent as they are; their numbers come first, then the steps and positions of all.
    step_bytes: size of the compressed steps and positions (`wire.changes`).
    """

    offset: int = 0
    changes: int = -1
    far: int = 0
    step_bytes: int = 0

    @property
    def count(self) -> int:
        """The number of numbers in the rectangle."""
        return prod(self.box.sizes)

    @property
    def nbytes(self) -> int:
        """Size in the bucket, in bytes."""
        size = storage_type(self.kind).itemsize
        if self.changes < 0:
            return self.count * size
        return self.far * size + self.step_bytes

    def of(self, data: BucketData) -> Any:
        """Returns all numbers of the rectangle as a view into a bucket's buffer: an array, or a tensor on the buffer's device."""
        return self._numbers(data[self.offset : self.offset + self.nbytes]).reshape(self.box.sizes)

    def piece(self, data: BucketData) -> Piece:
        """Returns what the bucket has of the rectangle; numbers are views into the bucket's buffer.

        data: an array if it has only changes.
        """
        if self.changes < 0:
            return self._piece(self.of(data))
        end = self.offset + self.nbytes
        compressed_at = end - self.step_bytes
        compressed: Any = data[compressed_at:end]
        encoded_steps, encoded_positions = decompress(compressed, self.changes)
        inside = np.unravel_index(decode_positions(encoded_positions), self.box.sizes)
        places = tuple(index + start for index, start in zip(inside, self.box.offsets, strict=True))
        at = np.asarray(np.ravel_multi_index(places, self.shape), np.int64)
        far = self._numbers(data[self.offset : compressed_at])
        return self._piece(far, Changed(at, decode_steps(encoded_steps, self.changes)))

    def _piece(self, values: Any, changed: Changed | None = None) -> Piece:
        return Piece(name=self.name, shape=self.shape, box=self.box, kind=self.kind, values=values, changed=changed)

    def _numbers(self, data: BucketData) -> Any:
        if isinstance(data, np.ndarray):
            return data.view(storage_type(self.kind))
        import torch

        return data.view(getattr(torch, self.kind))


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
    data: BucketData
    digest: str

    @property
    def nbytes(self) -> int:
        """Size of the buffer in bytes."""
        return int(self.data.nbytes)

    def require_intact(self) -> None:
        """Raises `InfrastructureError` if the contents do not match the digest."""
        if bucket_digest(self.places, self.data) != self.digest:
            raise InfrastructureError(
                f"weights: bucket {self.number} of {self.nbytes} bytes does not match its digest; it was damaged on its way"
            )

    def pieces(self) -> Iterator[Piece]:
        """Yields views into the buffer; read-only if it came from an object store."""
        for place in self.places:
            yield place.piece(self.data)


def bucket_digest(places: Sequence[Place], data: BucketData) -> str:
    """Returns a digest of a bucket's places and bytes, as 64 hexadecimal digits; the same on every device.

    It reveals damage, not forgery: of the bytes it has exact integer sums (`block_sums`).
    """
    rows = [[*each.facts, each.offset, each.changes, each.far, each.step_bytes] for each in places]
    return json_digest([rows, len(data), block_sums(data)])


def aligned(end: int) -> int:
    """Returns the first offset at or after `end` at which a rectangle may begin."""
    return -(-end // ALIGNMENT) * ALIGNMENT


def laid_out(places: Iterable[Place]) -> tuple[Place, ...]:
    """Returns places one behind another, whatever their offsets were."""
    found = list[Place]()
    end = 0
    for place in places:
        found.append(replace(place, offset=aligned(end)))
        end = found[-1].offset + place.nbytes
    return tuple(found)


def buckets_of(tensors: NamedArrays, most_bytes: int = BUCKET_BYTES) -> Iterator[WeightBucket]:
    """Splits a stream of tensors into one or more buckets.

    most_bytes: maximum size of a bucket; at least the size of one number.
    """
    number = 0
    places = list[Place]()
    # Pages are allocated on first write: a small model takes no more memory than its size.
    data = np.empty(most_bytes, np.uint8)
    end = 0
    for name, array in tensors:
        kind = array.dtype.name
        for box in cut_box(whole_box(array.shape), most_bytes // storage_type(kind).itemsize):
            place = Place(name=name, shape=tuple(array.shape), box=box, kind=kind, offset=aligned(end))
            if place.offset + place.nbytes > most_bytes:
                yield _bucket(number, False, places, data[:end])
                number += 1
                places = []
                data = np.empty(most_bytes, np.uint8)
                place = replace(place, offset=0)
            # With the ellipsis, a tensor without dimensions stays an array.
            inside: Any = (*box.slices((0,) * array.ndim), ...)
            place.of(data)[...] = array[inside]
            end = place.offset + place.nbytes
            places.append(place)
    yield _bucket(number, True, places, data[:end])


def _bucket(number: int, last: bool, places: Sequence[Place], data: BucketBuffer) -> WeightBucket:
    clear_gaps(places, data)
    digest = bucket_digest(places, data)
    return WeightBucket(number=number, last=last, places=tuple(places), data=data, digest=digest)


def clear_gaps(places: Iterable[Place], data: BucketData) -> None:
    """Sets the bytes between the rectangles to zero, so that equal weights have equal digests."""
    end = 0
    for place in places:
        if place.offset > end:
            data[end : place.offset] = 0
        end = max(end, place.offset + place.nbytes)
