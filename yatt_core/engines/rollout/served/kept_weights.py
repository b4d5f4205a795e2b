"""A copy of the weights that a served engine was sent last, to which changes are applied (`trainer.sync: delta`).

Consumes pieces that have been checked, whole rectangles or what has changed in them. Produces buckets of whole tensors, of the
parts of the model in which anything has changed, for the engine's workers to load. There is one copy for all workers of a
node, in the engine's type, in memory that they read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from yatt_core.engines.rollout.served.shared_bucket import BucketMemory, SharedBucket
from yatt_core.engines.tensor_bits import as_tensor, write_piece
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import BUCKET_BYTES, Piece, Place, WeightBucket, bucket_digest, laid_out
from yatt_core.wire.parts import Sizes, whole_box

LAYER = re.compile(r".*?\.\d+\.")
"""The beginning of the names of a layer's tensors. An engine may fuse them, so that it needs all of them together."""
OUTSIDE = ""
"""The part of all tensors outside of numbered layers: which of them an engine fuses, their names do not tell."""


class KeptWeights:
    """The copy of one engine.

    shapes: of the model's tensors, by name.
    kind: type of the numbers: numpy's name, or `bfloat16`.
    most_bytes: maximum size of a bucket; a tensor that is larger has a bucket of its own.
    """

    def __init__(self, shapes: Mapping[str, Sizes], kind: str, most_bytes: int = BUCKET_BYTES) -> None:
        self._most_bytes = most_bytes
        places = laid_out(
            Place(name=name, shape=shape, box=whole_box(shape), kind=kind) for name, shape in shapes.items()
        )
        self._places = {place.name: place for place in places}
        self._memory = BucketMemory()
        (self._data,) = self._memory.buffers(1, max(place.offset + place.nbytes for place in places))
        self._changed: set[str] = set()
        self._is_complete = False
        self._has_base = False

    def begin(self) -> None:
        """Begins an update. If it does not end, the copy is no base for changes until all weights have arrived again."""
        self._has_base = self._is_complete
        self._is_complete = False
        self._changed.clear()

    def put(self, piece: Piece) -> None:
        """Writes a rectangle, rounded to the copy's type, or changes numbers of it.

        Raises `InfrastructureError` for changes of what is not known, and for those of numbers of another type.
        """
        place = self._places[piece.name]
        if piece.changed is not None and not self._has_base:
            raise InfrastructureError(f"weights: only changes of {piece.name} arrived, but the engine needs all of it")
        write_piece(as_tensor(place.of(self._data), place.kind), piece)
        if piece.changed is None or piece.changed.at.size:
            self._changed.add(_part_of(piece.name))

    def buckets(self, with_digests: bool) -> Iterator[SharedBucket]:
        """Yields all tensors of the parts in which anything has changed in this update; valid until the next one begins.

        with_digests: whether somebody checks the buckets' digests.
        """
        places = list[Place]()
        for place in self._places.values():
            is_due = _part_of(place.name) in self._changed
            if places and (not is_due or place.offset + place.nbytes - places[0].offset > self._most_bytes):
                yield self._bucket(places, with_digests)
                places = []
            if is_due:
                places.append(place)
        if places:
            yield self._bucket(places, with_digests)

    def _bucket(self, places: Sequence[Place], with_digest: bool) -> SharedBucket:
        start = places[0].offset
        data = self._data[start : places[-1].offset + places[-1].nbytes]
        moved = tuple(replace(place, offset=place.offset - start) for place in places)
        digest = bucket_digest(moved, data) if with_digest else ""
        bucket = WeightBucket(number=0, last=False, places=moved, data=data, digest=digest)
        return replace(self._memory.share(bucket), lasts=True)

    def end(self) -> None:
        """Ends an update: all of it has arrived, and the engine has loaded it."""
        self._is_complete = True

    def close(self) -> None:
        """Frees the memory."""
        self._data = np.empty(0, np.uint8)
        self._memory.close()


def _part_of(name: str) -> str:
    """Returns the beginning of the names of the tensors that are loaded together with one, or `OUTSIDE`."""
    layer = LAYER.match(name)
    return OUTSIDE if layer is None else layer.group()
