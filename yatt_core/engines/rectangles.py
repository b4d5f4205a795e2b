"""Rectangles of weights, and the digests by which a trainer's ranks and the rollout engines compare what they hold.

Consumes rectangles and the tensors that have them; produces a sha256 each. A rank rounds its numbers to the engines'
type first; an engine reads the memory from which it computes. Nobody gathers or sends a tensor. The sign of a zero does
not count, nor do subnormal numbers: an engine whose kernels pack their weights cannot always tell them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch

from yatt_core.digests import json_digest
from yatt_core.wire.number_types import FLOATS
from yatt_core.wire.parts import Rectangle, TensorPart

Parts = Iterator[TensorPart[torch.Tensor]]
"""Parts of tensors that a rank contributes to the weights."""
BLOCK = 4 << 20
"""Numbers that are rounded and hashed, or compared, at a time."""


def rectangle_of(part: TensorPart[torch.Tensor], rounded_to: str | None) -> Rectangle:
    """Returns the rectangle that a part covers, in the type in which it is sent."""
    own = str(part.values.dtype).removeprefix("torch.")
    kind = rounded_to if rounded_to is not None and own in FLOATS else own
    return Rectangle(part.name, part.shape, part.box, kind)


def part_digests(parts: Iterable[TensorPart[torch.Tensor]], rounded_to: str | None) -> dict[Rectangle, str]:
    """Returns the digest of each part, rounded to the type of the engines; None to round nothing."""
    return {(rectangle := rectangle_of(part, rounded_to)): rectangle_digest(rectangle, part.values) for part in parts}


@torch.no_grad()
def rectangle_digest(rectangle: Rectangle, values: torch.Tensor) -> str:
    """Returns the digest of a rectangle. values: its numbers, of any floating-point type, on any device."""
    digest = hashlib.sha256(json_digest(rectangle.facts).encode())
    rows = values.detach().reshape(values.shape or (1,))
    kind = getattr(torch, rectangle.kind)
    step = max(1, BLOCK * len(rows) // max(1, rows.numel()))
    for start in range(0, len(rows), step):
        block = rows[start : start + step].to("cpu", kind).reshape(-1)
        digest.update(comparable(block).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def comparable(values: torch.Tensor) -> torch.Tensor:
    """Returns numbers with zero in place of negative zero and of subnormal numbers."""
    if not values.is_floating_point():
        return values
    return torch.where(values.abs() < torch.finfo(values.dtype).tiny, 0.0, values)
