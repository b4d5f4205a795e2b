"""What a rank has sent last, in the engines' type and in host memory: the base of what it sends next.

Consumes parts of tensors; holds a copy of each, of half the bytes of float32 if the engines use bfloat16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from yatt_core.wire.parts import Sizes, TensorPart

if TYPE_CHECKING:
    import torch


class SentWeights:
    """What one rank has sent.

    name: the transfer by which engines got it; empty while it is not known what they hold.
    """

    def __init__(self) -> None:
        self.name = ""
        self._tensors: dict[tuple[str, Sizes], torch.Tensor] = {}

    def of(self, part: TensorPart[torch.Tensor], kind: str) -> torch.Tensor:
        """Returns the copy of a part, for reading and writing; one of any content if there was none.

        kind: type of its numbers: numpy's name, or `bfloat16`.
        """
        key = (part.name, part.offsets)
        if key not in self._tensors:
            import torch

            self._tensors[key] = torch.empty(part.sizes, dtype=getattr(torch, kind))
        return self._tensors[key]
