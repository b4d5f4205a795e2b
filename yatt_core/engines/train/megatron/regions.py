"""Where the numbers of Hugging Face's tensors lie in Megatron-Core's parameters, without moving any.

Consumes a parameter's place in the model and this rank's position. Produces rectangles of the Hugging Face tensors,
each with the spans of the flattened parameter that hold its numbers. A rank that updates only a range of a
parameter (distributed optimizer) has up to three rectangles of each tensor, since a range may begin and end within
a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch

from yatt_core.engines.train.megatron.architecture import Architecture
from yatt_core.engines.train.megatron.bridge import ParameterMapping
from yatt_core.wire.parts import Box, Sizes

Span = tuple[int, int]
"""First index and the index after the last one."""


@dataclass(frozen=True, slots=True)
class Region:
    """A rectangle of a Hugging Face tensor.

    shape: shape of the whole tensor.
    spans: spans of the flattened parameter that hold the rectangle's numbers, in row order.
    """

    name: str
    shape: Sizes
    box: Box
    spans: tuple[Span, ...]

    def values(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the rectangle's values, as a view if they are adjacent.

        numbers: the flattened parameter.
        """
        found = [numbers[start:stop] for start, stop in self.spans]
        return (found[0] if len(found) == 1 else torch.cat(found)).view(self.box.sizes)

    def put(self, numbers: torch.Tensor, values: torch.Tensor) -> None:
        """Writes the rectangle's values into the flattened parameter."""
        flat = values.flatten()
        done = 0
        for start, stop in self.spans:
            numbers[start:stop].copy_(flat[done : done + stop - start])
            done += stop - start


def regions_of(place: ParameterMapping, size: Sizes, shape: Architecture, rank: int, ranks: int) -> Iterator[Region]:
    """Yields the rectangles that make up a tensor-parallel rank's part of a parameter, in the place's order.

    size: the part's own shape.
    """
    width = prod(size[1:])
    match place.cut:
        case "whole":
            yield Region(place.names[0], size, Box((0,) * len(size), size), ((0, prod(size)),))
        case "columns":
            whole = (size[0], size[1] * ranks)
            yield Region(place.names[0], whole, Box((0, size[1] * rank), size), ((0, prod(size)),))
        case "gate_up":
            rows = size[0] // 2
            for number, name in enumerate(place.names):
                yield _rows(
                    name=name,
                    size=size,
                    rows=rows,
                    rank=rank,
                    ranks=ranks,
                    spans=((number * rows * width, (number + 1) * rows * width),),
                )
        case "query_key_value":
            counts = (shape.heads // shape.groups * shape.head_size, shape.head_size, shape.head_size)
            groups = size[0] // sum(counts)
            stride = sum(counts) * width
            for number, (name, count) in enumerate(zip(place.names, counts, strict=True)):
                first = sum(counts[:number]) * width
                spans = tuple((first + g * stride, first + g * stride + count * width) for g in range(groups))
                yield _rows(name=name, size=size, rows=groups * count, rank=rank, ranks=ranks, spans=spans)
        case "vocabulary":
            first = rank * size[0]
            if rows := max(0, min(size[0], shape.vocabulary - first)):
                box = Box((first, *(0 for _ in size[1:])), (rows, *size[1:]))
                yield Region(place.names[0], (shape.vocabulary, *size[1:]), box, ((0, rows * width),))


def _rows(name: str, size: Sizes, rows: int, rank: int, ranks: int, spans: tuple[Span, ...]) -> Region:
    """Returns a rank's rows of a tensor of which each rank has equally many."""
    rest = size[1:]
    return Region(name, (rows * ranks, *rest), Box((rows * rank, *(0 for _ in rest)), (rows, *rest)), spans)


def regions_in(region: Region, start: int, stop: int) -> Iterator[Region]:
    """Yields the rectangles of a region whose numbers lie in a range of the flattened parameter.

    Their spans are relative to the range.
    """
    spans: list[Span] = []
    first = 0
    before = 0
    for begin, end in region.spans:
        low = max(begin, start)
        high = min(end, stop)
        if low < high:
            if not spans:
                first = before + low - begin
            spans.append((low - start, high - start))
        before += end - begin
    if not spans:
        return
    count = sum(high - low for low, high in spans)
    for box in _boxes(region.box, first, first + count):
        own, spans = _taken(spans, prod(box.sizes))
        yield Region(region.name, region.shape, box, own)


def _boxes(box: Box, first: int, last: int) -> Iterator[Box]:
    """Yields the rectangles that a run of numbers of a rectangle consists of, in order; at most three."""
    width = prod(box.sizes[1:])
    while first < last:
        row, column = divmod(first, width)
        if column or last - first < width:
            count = min(width - column, last - first)
            yield Box((box.offsets[0] + row, box.offsets[1] + column), (1, count))
        else:
            rows = (last - first) // width
            count = rows * width
            yield Box((box.offsets[0] + row, *box.offsets[1:]), (rows, *box.sizes[1:]))
        first += count


def _taken(spans: Sequence[Span], count: int) -> tuple[tuple[Span, ...], list[Span]]:
    """Divides spans after `count` numbers."""
    own: list[Span] = []
    left = list(spans)
    while count:
        start, stop = left.pop(0)
        middle = min(stop, start + count)
        own.append((start, middle))
        count -= middle - start
        if middle < stop:
            left.insert(0, (middle, stop))
    return tuple(own), left
