"""Takes weights into the tensors with which an engine of this process computes, and tells what they hold.

Consumes the tensors, and pieces of weights. The tensors of an engine that sleeps are in host memory; they come back for an update
and for a comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from yatt_core.engines.host_memory import give_back_freed_memory
from yatt_core.engines.offload import HeldMemory, Offloaded
from yatt_core.engines.rectangles import rectangle_digest
from yatt_core.engines.rollout.incoming import ExpectedTensors, WeightTaker
from yatt_core.engines.tensor_bits import write_piece
from yatt_core.wire.buckets import Piece
from yatt_core.wire.parts import Rectangle


class OwnTensors(WeightTaker):
    """The part of an engine that holds its weights.

    tensors: by name; tied ones under one of their names.
    renamed: that name by others under which a tensor may arrive.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], renamed: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._expected = ExpectedTensors({name: tuple(each.shape) for name, each in tensors.items()}, renamed)
        self._away: Offloaded | None = None

    def _begin(self, version: int) -> ExpectedTensors:
        self._wake()
        return self._expected

    def _put(self, piece: Piece) -> None:
        write_piece(self._tensors[piece.name], piece)

    def rectangle_digests(self, rectangles: Sequence[Rectangle]) -> list[str]:
        """See `RolloutEngine`. A sleeping engine wakes for it.

        Raises `InfrastructureError` for tensors that the model does not have.
        """
        asleep = self._away is not None
        try:
            self._wake()
            return [self._digest(rectangle) for rectangle in rectangles]
        finally:
            if asleep:
                self._sleep()

    def _digest(self, rectangle: Rectangle) -> str:
        whole = self._tensors[self._expected.name_of(rectangle)]
        return rectangle_digest(rectangle, whole[rectangle.box.slices((0,) * whole.dim())])

    def sleep(self) -> None:
        """Moves the weights from a GPU to host memory until they are needed again."""
        self._sleep()

    def _sleep(self) -> None:
        if self._away is None:
            self._away = Offloaded(HeldMemory(tuple(self._tensors.values())))
        give_back_freed_memory()

    def wake(self) -> None:
        """Moves the weights back to the GPU."""
        self._wake()

    def _wake(self) -> None:
        if self._away is not None:
            self._away.bring_back()
            self._away = None
