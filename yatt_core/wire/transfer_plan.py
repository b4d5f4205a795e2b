"""Which rank sends which numbers of the weights in which bucket: a plan that every process makes for itself.

Consumes the rectangles that each rank contributes. Produces buckets, each sent by one rank, in windows: the buckets of
a window together are no larger than one bucket may be, and hold the same tensors, so that a tensor whose parts come
from several ranks is soon complete. Pure functions; the plan depends on nothing but the rectangles.
"""

from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from yatt_core.wire.buckets import Place, aligned, placed
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


def plan_transfer(sources: Sequence[Sequence[Rectangle]], most_bytes: int) -> tuple[PlannedBucket, ...]:
    """Plans the buckets of all ranks; a rank sends its rectangles in the order in which it lists them.

    sources: each rank's rectangles; those of one tensor are adjacent, and all ranks list tensors in compatible orders.
    most_bytes: maximum size of a bucket.

    There is at least one bucket, which may be empty.
    """
    window = list[tuple[int, Rectangle]]()
    size = 0
    found = list[PlannedBucket]()
    for source, rectangle in _in_order(sources):
        item = storage_type(rectangle.kind).itemsize
        for box in cut_box(rectangle.box, most_bytes // item):
            cut = replace(rectangle, box=box)
            needed = aligned(placed(cut, 0).nbytes)
            if window and size + needed > most_bytes:
                found += _buckets(window, len(found))
                window = []
                size = 0
            window.append((source, cut))
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

    Names of different lists are interleaved by their places. Raises `ValueError` if the lists contradict each other.
    """
    followers: dict[str, set[str]] = {name: set() for names in lists for name in names}
    waits = dict.fromkeys(followers, 0)
    place = dict.fromkeys(followers, 0)
    for names in lists:
        for number, name in enumerate(names):
            place[name] = max(place[name], number)
            if number and name not in followers[names[number - 1]]:
                followers[names[number - 1]].add(name)
                waits[name] += 1
    ready = [(place[name], name) for name, count in waits.items() if not count]
    heapq.heapify(ready)
    found: list[str] = []
    while ready:
        _, name = heapq.heappop(ready)
        found.append(name)
        for following in followers[name]:
            waits[following] -= 1
            if not waits[following]:
                heapq.heappush(ready, (place[following], following))
    if len(found) < len(followers):
        raise ValueError(
            f"the ranks list their tensors in contradictory orders, such as {min(followers.keys() - {*found})}"
        )
    return found


def _buckets(window: Sequence[tuple[int, Rectangle]], number: int) -> list[PlannedBucket]:
    """Divides a window by rank. number: that of the first bucket."""
    found = list[PlannedBucket]()
    for source in sorted({source for source, _ in window}):
        end = 0
        places = list[Place]()
        for rectangle in (each for owner, each in window if owner == source):
            place = placed(rectangle, aligned(end))
            end = place.offset + place.nbytes
            places.append(place)
        found.append(PlannedBucket(number + len(found), source, False, tuple(places)))
    return found


def encode_rectangles(rectangles: Iterable[Rectangle]) -> bytes:
    """Returns a rank's rectangles as bytes for the other processes; `decode_rectangles` is the inverse."""
    rows = [[each.name, each.shape, each.box.offsets, each.box.sizes, each.kind] for each in rectangles]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode())


def decode_rectangles(data: bytes) -> list[Rectangle]:
    """Returns what `encode_rectangles` encoded."""
    rows = json.loads(zlib.decompress(data))
    return [
        Rectangle(name, tuple(shape), Box(tuple(offsets), tuple(sizes)), kind)
        for name, shape, offsets, sizes, kind in rows
    ]
