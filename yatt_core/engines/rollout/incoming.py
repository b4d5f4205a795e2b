"""New weights on their way into a rollout engine: what has come, what may come, and whether all of it is there.

Consumes the pieces of buckets (`yatt_core.wire.buckets`); refuses what is not the model's, what comes twice and what is out of
order. An engine is *dirty*, at version -1, from before the first bucket until the last tensor of its model has come.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from yatt_core.errors import InfrastructureError
from yatt_core.protocols.engines import Tensors
from yatt_core.wire.buckets import Array, Piece, WeightBucket, buckets_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an update has to bring. shapes: of the model's tensors, tied ones once. own_name: of a tensor by any of its names."""

    shapes: Mapping[str, tuple[int, ...]]
    own_name: Callable[[str], str]


class Incoming:
    """One update. version: of its weights. wanted: none where any tensors will do."""

    def __init__(self, version: int, wanted: Wanted | None = None) -> None:
        self.version, self._wanted = version, wanted
        self._bucket, self._last = 0, False
        self._come: dict[str, int] = {}

    def pieces(self, bucket: WeightBucket) -> Iterator[Piece]:
        """The bucket's pieces by the model's own names. Raises `InfrastructureError` for what does not belong here."""
        if self._last or bucket.number != self._bucket:
            wanted = "none" if self._last else f"bucket {self._bucket}"
            raise InfrastructureError(f"weights: bucket {bucket.number} came, wanted is {wanted}")
        self._bucket, self._last = bucket.number + 1, bucket.last
        return (self._admitted(piece) for piece in bucket.pieces())

    def require_all(self) -> None:
        """Raises `InfrastructureError` unless every tensor has come."""
        if not self._last:
            raise InfrastructureError(f"weights: the last bucket has not come, behind {self._bucket} others")
        if self._wanted is not None:
            shapes = self._wanted.shapes
            if missing := sorted(name for name in shapes if self._come.get(name) != math.prod(shapes[name])):
                raise InfrastructureError(f"weights lack {len(missing)} tensors of the model, such as {missing[0]}")

    def _admitted(self, piece: Piece) -> Piece:
        if self._wanted is not None:
            piece = self._of_the_model(piece, self._wanted)
        come = self._come.get(piece.name)
        if come == math.prod(piece.shape):
            raise InfrastructureError(f"weights: {piece.name} came twice")
        if piece.start != (come or 0):
            raise InfrastructureError(f"weights: {piece.name} goes on at {piece.start}, wanted is {come or 0}")
        self._come[piece.name] = piece.start + len(piece.numbers)
        return piece

    def _of_the_model(self, piece: Piece, wanted: Wanted) -> Piece:
        name = wanted.own_name(piece.name)
        if name not in wanted.shapes:
            raise InfrastructureError(f"weights hold {piece.name}, which the model lacks")
        if piece.shape != wanted.shapes[name]:
            raise InfrastructureError(
                f"weights: {name} has shape {list(piece.shape)}, the model's is {list(wanted.shapes[name])}"
            )
        if not np.issubdtype(piece.numbers.dtype, np.floating):
            raise InfrastructureError(f"weights: {name} has dtype {piece.numbers.dtype}, floating point is wanted")
        return replace(piece, name=name)


class Assembly:
    """Whole tensors from their pieces, each of its own memory: buckets are not kept."""

    def __init__(self) -> None:
        self._begun: dict[str, Array] = {}

    def put(self, piece: Piece) -> Array | None:
        """The tensor, once all of it has come."""
        whole = self._begun.setdefault(piece.name, np.empty(math.prod(piece.shape), piece.numbers.dtype))
        end = piece.start + len(piece.numbers)
        whole[piece.start : end] = piece.numbers
        return self._begun.pop(piece.name).reshape(piece.shape) if end == len(whole) else None


class WeightTaker(ABC):
    """The part of `RolloutEngine` that takes weights. What an engine does with them is left to those that derive from it."""

    _version = -1
    _incoming: Incoming | None = None

    @abstractmethod
    def _begin(self, version: int) -> Wanted | None:
        """Makes ready for the weights of a version; says what has to come."""

    @abstractmethod
    def _put(self, piece: Piece) -> None:
        """Takes some numbers of a tensor; the memory that they lie in is not to be kept."""

    @abstractmethod
    def _complete(self, version: int) -> None:
        """Puts the new weights to work, all of which have come."""

    @property
    def version(self) -> int:
        """Version of the weights; -1 before the first update, while one is under way, and after one that failed."""
        return self._version

    def begin_update(self, version: int) -> None:
        """As of `RolloutEngine`."""
        self._version = -1
        self._incoming = None
        self._incoming = Incoming(version, self._begin(version))

    def take(self, bucket: WeightBucket) -> None:
        """As of `RolloutEngine`."""
        incoming = self._claimed()
        for piece in incoming.pieces(bucket):
            self._put(piece)
        self._incoming = incoming

    def end_update(self) -> None:
        """As of `RolloutEngine`."""
        incoming = self._claimed()
        incoming.require_all()
        self._complete(incoming.version)
        self._version = incoming.version

    def update_weights(self, tensors: Tensors, version: int) -> None:
        """A whole update at once. tensors: the full state dict, as of `begin_update`. Raises as `take` and `end_update`."""
        self.begin_update(version)
        for bucket in buckets_of(tensors.items()):
            self.take(bucket)
        self.end_update()

    def _claimed(self) -> Incoming:
        """The update under way, which is over unless it is put back: one that failed is not gone on with."""
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            raise InfrastructureError("weights came, and no update is under way; the engine has to be synced anew")
        return incoming
