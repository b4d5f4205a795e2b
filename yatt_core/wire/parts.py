"""Rectangular parts of named tensors: what a rank of a trainer holds of a model that is spread over several ranks.

Consumes the parts that a rank holds. Produces the parts that the rank contributes when all ranks together provide
every number exactly once, and the overlap of two rectangles. Pure functions; no rank communicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Generic, TypeVar

Array = TypeVar("Array", bound=Any)
"""An array of numpy or a tensor of torch."""
Sizes = tuple[int, ...]

DIVIDED_BYTES = 1 << 20
"""Replicated parts of at least this size are divided by rows among their holders; smaller ones go to one holder."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle within a tensor: where it begins in each dimension, and its size in each dimension."""

    offsets: Sizes
    sizes: Sizes

    def within(self, other: Box) -> Box | None:
        """Returns the overlap with another rectangle of the same tensor; None if there is none."""
        starts = [max(own, others) for own, others in zip(self.offsets, other.offsets, strict=True)]
        ends = [min(own, others) for own, others in zip(self.ends, other.ends, strict=True)]
        if any(start >= end for start, end in zip(starts, ends, strict=True)):
            return None
        return Box(tuple(starts), tuple(end - start for start, end in zip(starts, ends, strict=True)))

    @property
    def ends(self) -> Sizes:
        """The index after the last one in each dimension."""
        return tuple(start + size for start, size in zip(self.offsets, self.sizes, strict=True))

    def joined(self, other: Box) -> Box | None:
        """Returns the rectangle that this one and another one make up; None if they make up none."""
        own = zip(self.offsets, self.sizes, strict=True)
        others = zip(other.offsets, other.sizes, strict=True)
        differing = [place for place, (one, two) in enumerate(zip(own, others, strict=True)) if one != two]
        if len(differing) != 1:
            return None
        first, second = sorted((self, other), key=lambda box: box.offsets)
        place = differing[0]
        if first.ends[place] != second.offsets[place]:
            return None
        sizes = list(first.sizes)
        sizes[place] += second.sizes[place]
        return Box(first.offsets, tuple(sizes))

    def slices(self, origin: Sizes) -> tuple[slice, ...]:
        """Returns the slices that select this rectangle in an array that begins at `origin`."""
        return tuple(slice(s - o, e - o) for s, e, o in zip(self.offsets, self.ends, origin, strict=True))


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle of a tensor.

    shape: shape of the whole tensor.
    kind: type of its numbers: numpy's name, or `bfloat16`.
    """

    name: str
    shape: Sizes
    box: Box
    kind: str

    @property
    def facts(self) -> list[Any]:
        """What distinguishes it, as plain JSON values."""
        return [self.name, self.shape, self.box.offsets, self.box.sizes, self.kind]


@dataclass(frozen=True, slots=True)
class TensorPart(Generic[Array]):
    """A rank's part of a tensor.

    name: the tensor's name, as Hugging Face spells it.
    shape: shape of the whole tensor.
    offsets: where the part begins in each dimension.
    values: the part's numbers, in the part's own shape.
    holders: all ranks that hold this very part, this rank among them, in ascending order.
    """

    name: str
    shape: Sizes
    offsets: Sizes
    values: Array
    holders: tuple[int, ...]

    @property
    def sizes(self) -> Sizes:
        """The part's size in each dimension."""
        return tuple(self.values.shape)

    @property
    def box(self) -> Box:
        """The part's rectangle."""
        return Box(self.offsets, self.sizes)


def whole_box(shape: Sequence[int]) -> Box:
    """Returns the rectangle of a whole tensor."""
    return Box((0,) * len(shape), tuple(shape))


def cut_box(box: Box, most: int) -> Iterator[Box]:
    """Cuts a rectangle into rectangles of at most `most` numbers, in the order of the numbers."""
    if not box.sizes or prod(box.sizes) <= most:
        yield box
        return
    width = prod(box.sizes[1:])
    rows = max(1, most // width)
    for start in range(0, box.sizes[0], rows):
        count = min(rows, box.sizes[0] - start)
        first = box.offsets[0] + start
        if width <= most:
            yield Box((first, *box.offsets[1:]), (count, *box.sizes[1:]))
            continue
        for rest in cut_box(Box(box.offsets[1:], box.sizes[1:]), most):
            yield Box((first, *rest.offsets), (1, *rest.sizes))


def contributed(parts: Iterable[TensorPart[Array]], rank: int) -> Iterator[TensorPart[Array]]:
    """Yields what a rank contributes: parts that it alone holds, and an equal portion of those that others hold too.

    Ranks that hold a part together must list it, and all other parts that they hold together, in the same order.
    """
    given: dict[tuple[int, ...], list[int]] = {}
    for part in parts:
        number = part.holders.index(rank)
        count = len(part.holders)
        size = part.values.nbytes
        if count == 1:
            yield part
        elif size >= DIVIDED_BYTES and part.sizes[0] >= count:
            first, last = (part.sizes[0] * place // count for place in (number, number + 1))
            start = (part.offsets[0] + first, *part.offsets[1:])
            yield replace(part, offsets=start, values=part.values[first:last])
        else:
            so_far = given.setdefault(part.holders, [0] * count)
            least = so_far.index(min(so_far))
            so_far[least] += size
            if least == number:
                yield part
