"""Incoming weights of a rollout engine: what has arrived, what may still arrive, and whether the update is complete.

Consumes the pieces of buckets (`yatt_core.wire.buckets`), rectangles in any order; rejects damaged buckets, tensors
that the model does not have, and numbers that arrive twice. An engine is *dirty*, at version -1, from before
the first bucket until the last tensor of its model has arrived.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from yatt_core.errors import InfrastructureError
from yatt_core.protocols.engines import Tensors
from yatt_core.wire.buckets import BucketBuffer, Piece, WeightBucket, buckets_of
from yatt_core.wire.number_types import FLOATS
from yatt_core.wire.parts import Box, Rectangle, Sizes


@dataclass(frozen=True, slots=True)
class ExpectedTensors:
    """The tensors that an update must contain.

    shapes: shapes of the model's tensors by name; tied tensors appear only once.
    renamed: the names that the model uses, by others under which a tensor may arrive.
    """

    shapes: Mapping[str, Sizes]
    renamed: Mapping[str, str]

    def name_of(self, rectangle: Rectangle) -> str:
        """Returns the model's own name of a rectangle's tensor. Raises `InfrastructureError` if it has no such tensor."""
        name = self.renamed.get(rectangle.name, rectangle.name)
        if name not in self.shapes:
            raise InfrastructureError(f"weights: the model has no tensor {rectangle.name}")
        if rectangle.shape != self.shapes[name]:
            raise InfrastructureError(
                f"weights: {name} has shape {list(rectangle.shape)}, expected {list(self.shapes[name])}"
            )
        return name


class Arrived:
    """The rectangles of a tensor that have arrived, joined to larger ones where possible."""

    def __init__(self) -> None:
        self.numbers = 0
        self._boxes: list[Box] = []

    def add(self, box: Box) -> bool:
        """Adds a rectangle; returns False if some of its numbers have arrived before."""
        if any(box.within(other) for other in self._boxes):
            return False
        self.numbers += math.prod(box.sizes)
        while self._boxes and (larger := self._boxes[-1].joined(box)) is not None:
            self._boxes.pop()
            box = larger
        self._boxes.append(box)
        return True


class Incoming:
    """One update.

    version: version of the incoming weights.
    wanted: what the update must contain; None if any tensors will do.
    """

    def __init__(self, version: int, wanted: ExpectedTensors | None = None) -> None:
        self.version = version
        self._wanted = wanted
        self._bucket = 0
        self._last = False
        self._come: dict[str, Arrived] = {}

    def pieces(self, bucket: WeightBucket) -> Iterator[Piece]:
        """Yields the bucket's pieces under the model's own names. Raises `InfrastructureError` for unexpected ones."""
        if self._last or bucket.number != self._bucket:
            wanted = "none" if self._last else f"bucket {self._bucket}"
            raise InfrastructureError(f"weights: received bucket {bucket.number}, expected {wanted}")
        bucket.require_intact()
        self._bucket = bucket.number + 1
        self._last = bucket.last
        return (self._admitted(piece) for piece in bucket.pieces())

    def require_all(self) -> None:
        """Raises `InfrastructureError` unless every tensor has arrived."""
        if not self._last:
            raise InfrastructureError(f"weights: the last bucket is missing, {self._bucket} arrived")
        if self._wanted is not None:
            shapes = self._wanted.shapes
            if missing := sorted(name for name in shapes if not self._is_whole(name, shapes[name])):
                raise InfrastructureError(f"weights lack {len(missing)} tensors of the model, such as {missing[0]}")

    def _is_whole(self, name: str, shape: Sizes) -> bool:
        return name in self._come and self._come[name].numbers == math.prod(shape)

    def _admitted(self, piece: Piece) -> Piece:
        if self._wanted is not None:
            piece = replace(piece, name=self._wanted.name_of(piece))
            if piece.kind not in FLOATS:
                raise InfrastructureError(f"weights: {piece.name} has dtype {piece.kind}, expected floating point")
        if self._is_whole(piece.name, piece.shape) or not self._come.setdefault(piece.name, Arrived()).add(piece.box):
            raise InfrastructureError(f"weights: numbers of {piece.name} arrived twice")
        return piece


class Assembly:
    """Assembles whole tensors from their pieces, each in its own memory; buckets are not kept."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[Any, int]] = {}

    def put(self, piece: Piece) -> Any:
        """Adds a piece; returns the tensor if this completes it, otherwise None: an array or a tensor on a device, as the pieces.

        Arrays have the bits of numbers of type bfloat16. Raises `InfrastructureError` for changes, since what they
        change is not here.
        """
        if piece.changed is not None:
            raise InfrastructureError(f"weights: only changes of {piece.name} arrived, but the engine needs all of it")
        values = piece.values
        if piece.name not in self._begun:
            made = (
                np.empty(piece.shape, values.dtype) if isinstance(values, np.ndarray) else values.new_empty(piece.shape)
            )
            self._begun[piece.name] = made, math.prod(piece.shape)
        whole, missing = self._begun[piece.name]
        whole[piece.box.slices((0,) * len(piece.shape))] = values
        missing -= math.prod(piece.box.sizes)
        if missing:
            self._begun[piece.name] = whole, missing
            return None
        del self._begun[piece.name]
        return whole


class WeightTaker(ABC):
    """The part of `RolloutEngine` that takes weights. Derived engines define what happens to them."""

    _version = -1
    _incoming: Incoming | None = None

    @abstractmethod
    def _begin(self, version: int) -> ExpectedTensors | None:
        """Prepares for a new version of the weights; returns what the update must contain."""

    @abstractmethod
    def _put(self, piece: Piece) -> None:
        """Accepts a rectangle of a tensor; its memory must not be kept."""

    @abstractmethod
    def _complete(self, version: int) -> None:
        """Activates the new weights, all of which have arrived."""

    @property
    def version(self) -> int:
        """Version of the weights; -1 before the first update, during an update, and after a failed one."""
        return self._version

    def begin_update(self, version: int) -> None:
        """See `RolloutEngine`."""
        self._version = -1
        self._incoming = None
        self._incoming = Incoming(version, self._begin(version))

    def buffers(self, count: int, nbytes: int) -> Sequence[BucketBuffer] | None:
        """See `RolloutEngine`."""
        return None

    def take(self, bucket: WeightBucket) -> None:
        """See `RolloutEngine`."""
        incoming = self._claimed()
        for piece in incoming.pieces(bucket):
            self._put(piece)
        self._incoming = incoming

    def end_update(self) -> None:
        """See `RolloutEngine`."""
        incoming = self._claimed()
        incoming.require_all()
        self._complete(incoming.version)
        self._version = incoming.version

    def update_weights(self, tensors: Tensors, version: int) -> None:
        """Performs a whole update at once.

        tensors: the full state dict, as described in `begin_update`.

        Raises the same errors as `take` and `end_update`.
        """
        self.begin_update(version)
        for bucket in buckets_of(tensors.items()):
            self.take(bucket)
        self.end_update()

    def _claimed(self) -> Incoming:
        """Removes and returns the current update. It is put back only on success: a failed update is never resumed."""
        incoming = self._incoming
        self._incoming = None
        if incoming is None:
            raise InfrastructureError("weights arrived, but no update is in progress; sync the engine again")
        return incoming


class AssemblingTaker(WeightTaker):
    """A taker of any tensors, each of which it holds whole (`_whole`) when the update is complete."""

    def _begin(self, version: int) -> ExpectedTensors | None:
        self._assembly = Assembly()
        self._whole = dict[str, Any]()
        return None

    def _put(self, piece: Piece) -> None:
        if (tensor := self._assembly.put(piece)) is not None:
            self._whole[piece.name] = tensor
