"""Which rank sends which numbers of the weights in which bucket: a plan that every process makes for itself.

Consumes the rectangles that each rank contributes. Produces buckets, each sent by one rank, in windows: the buckets of
a window together are no larger than one bucket may be, and hold the same tensors, so that a tensor whose parts come
from several ranks is soon complete. Pure functions; the plan depends on nothing but the rectangles.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from yatt_core.wire.buckets import Place, aligned, laid_out
from yatt_core.wire.number_types import storage_type
from yatt_core.wire.parts import Box, Rectangle, cut_box


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """A bucket before it is filled.

    number: index from 0, over all ranks.
    source: the rank that sends it.
    """

    number: int
    source: int
    last: bool
    places: tuple[Place, ...]

    @property
    def nbytes(self) -> int:
        """Size of its contents in bytes."""
        return max((place.offset + place.nbytes for place in self.places), default=0)

    @property
    def changed_sizes(self) -> list[int]:
        """What tells the places of changes from those of the plan: three numbers each."""
        return [size for each in self.places for size in (each.changes, each.far, each.step_bytes)]

    def of_changes(self, sizes: Sequence[int]) -> PlannedBucket:
        """Returns the bucket with what has changed in its rectangles. sizes: its `changed_sizes`."""
        rows = zip(self.places, sizes[0::3], sizes[1::3], sizes[2::3], strict=True)
        counted = (replace(place, changes=changes, far=far, step_bytes=steps) for place, changes, far, steps in rows)
        return replace(self, places=laid_out(counted))


def plan_transfer(
    sources: Sequence[Sequence[Rectangle]], most_bytes: int, most_numbers: int
) -> tuple[PlannedBucket, ...]:
    """Plans the buckets of all ranks; a rank sends its rectangles in the order in which it lists them.

    sources: each rank's rectangles; those of one tensor are adjacent, and all ranks list tensors in compatible orders.
    most_bytes: maximum size of a bucket.
    most_numbers: those of a rectangle in a bucket.

    There is at least one bucket, which may be empty.
    """
    window = list[tuple[int, Place]]()
    size = 0
    found = list[PlannedBucket]()
    for source, rectangle in _in_order(sources):
        item = storage_type(rectangle.kind).itemsize
        for box in cut_box(rectangle.box, min(most_numbers, most_bytes // item)):
            place = Place(name=rectangle.name, shape=rectangle.shape, box=box, kind=rectangle.kind)
            needed = aligned(place.nbytes)
            if window and size + needed > most_bytes:
                found += _buckets(window, len(found))
                window = []
                size = 0
            window.append((source, place))
            size += needed
    found += _buckets(window, len(found)) or ([] if found else [PlannedBucket(0, 0, False, ())])
    return (*found[:-1], replace(found[-1], last=True))


def _in_order(sources: Sequence[Sequence[Rectangle]]) -> Iterable[tuple[int, Rectangle]]:
    """Yields all rectangles, each with its rank: tensor by tensor, in an order that is compatible with every rank's."""
    by_name: dict[str, list[tuple[int, Rectangle]]] = {}
    for source, rectangles in enumerate(sources):
        for rectangle in rectangles:
            by_name.setdefault(rectangle.name, []).append((source, rectangle))
    for name in merged_order([list(dict.fromkeys(each.name for each in rectangles)) for rectangles in sources]):
        yield from by_name[name]


def merged_order(lists: Sequence[Sequence[str]]) -> list[str]:
    """Returns the names of all lists in an order in which each list's names keep their order.

    Names of different lists are interleaved. Raises `ValueError` if the lists contradict each other.
    """
    order = TopologicalSorter(dict.fromkeys((name for names in lists for name in names), ()))
    for names in lists:
        for name, following in pairwise(names):
            order.add(following, name)
    try:
        order.prepare()
    except CycleError as error:
        raise ValueError(
            f"the ranks list their tensors in contradictory orders, such as {min(error.args[1])}"
        ) from None
    found = list[str]()
    while ready := sorted(order.get_ready()):
        found += ready
        order.done(*ready)
    return found


def _buckets(window: Sequence[tuple[int, Place]], first: int) -> list[PlannedBucket]:
    """Divides a window by rank. first: the number of its first bucket."""
    return [
        PlannedBucket(number, source, False, laid_out(place for owner, place in window if owner == source))
        for number, source in enumerate(sorted({source for source, _ in window}), first)
    ]


def encode_rectangles(rectangles: Iterable[Rectangle]) -> bytes:
    """Returns a rank's rectangles as bytes for the other processes; `decode_rectangles` is the inverse."""
    return zlib.compress(json.dumps([each.facts for each in rectangles], separators=(",", ":")).encode())


def decode_rectangles(data: bytes) -> list[Rectangle]:
    """Returns what `encode_rectangles` encoded."""
    rows = json.loads(zlib.decompress(data))
    return [
        Rectangle(name, tuple(shape), Box(tuple(offsets), tuple(sizes)), kind)
        for name, shape, offsets, sizes, kind in rows
    ]
