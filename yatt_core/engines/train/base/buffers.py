"""Host buffers for what a rank contributes to a checkpoint, reused since new pages cost more than the copy.

Consumes parts of tensors, on any device. Produces copies that the next update does not change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import torch

from yatt_core.wire.parts import Sizes, TensorPart, contributed

Array = npt.NDArray[Any]


class FreezeBuffers:
    """The buffers of one rank; a buffer's contents are valid until it is filled again."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str, Sizes], torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Size of all buffers in bytes."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def fill(
        self, subfolder: str, parts: Iterable[TensorPart[torch.Tensor]], rank: int, changes: bool = True
    ) -> list[TensorPart[Array]]:
        """Copies the parts that a rank contributes to a subfolder of the checkpoint; drops the subfolder's other buffers.

        changes: whether the next update changes them; if not, those on the host need no copy.
        """
        found = []
        used = set()
        for part in contributed(parts, rank):
            values = part.values.detach()
            if changes or values.device.type != "cpu":
                key = (subfolder, part.name, part.offsets)
                used.add(key)
                values = self._buffer(key, values).copy_(values)
            found.append(
                TensorPart(
                    name=part.name, shape=part.shape, offsets=part.offsets, values=values.numpy(), holders=part.holders
                )
            )
        for key in [key for key in self._buffers if key[0] == subfolder and key not in used]:
            del self._buffers[key]
        return found

    def _buffer(self, key: tuple[str, str, Sizes], values: torch.Tensor) -> torch.Tensor:
        """Returns the buffer of a part, a new one in place of one that has another shape or type."""
        kept = self._buffers.get(key)
        if kept is None or kept.shape != values.shape or kept.dtype != values.dtype:
            kept = torch.empty(values.shape, dtype=values.dtype)
            self._buffers[key] = kept
        return kept
