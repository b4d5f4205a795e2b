"""Which driver was there when: a run's drivers' stretches, from the times in the ledger.

A stretch begins when the lease is taken. It ends as its driver booked it; where the driver was lost, with its last sign of life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from db.read.history import AttemptTimes, RunHistory
from db.write.lease import DRIVER_LOST, LOST

Span = tuple[int, int]


@dataclass(slots=True)
class Stretch:
    """A driver's time under one term, as far as there is any sign of it. lost: it did not end it itself (or has not yet).

    replaced: another driver came after it.
    """

    term: int
    start: int
    end: int
    lost: bool
    replaced: bool = False
    attempts: list[AttemptTimes] = field(default_factory=list)


def stretches_of(history: RunHistory) -> list[Stretch]:
    """The drivers' stretches in order, none overlapping. An operator's command that took the lease is none."""
    segments = {segment.term: segment for segment in history.segments}
    signs: dict[int, int] = {}
    for term, at in _signs_of_life(history):
        signs[term] = max(at, signs.get(term, at))
    attempts: dict[int, list[AttemptTimes]] = defaultdict(list)
    for attempt in history.attempts:
        attempts[attempt.term].append(attempt)
    stretches = []
    for lease in history.leases:
        segment = segments.get(lease.term)
        if segment is None and lease.released_at is not None:
            continue
        ended = None if segment is None or segment.outcome == LOST else segment.ended_at
        end = signs.get(lease.term, lease.taken_at) if ended is None else ended
        stretches.append(Stretch(lease.term, lease.taken_at, end, ended is None, attempts=attempts[lease.term]))
    for one, after in pairwise(stretches):
        one.replaced = True
        after.start = max(one.start, after.start)
        one.end = min(max(one.start, one.end), after.start)
    if stretches:
        stretches[-1].end = max(stretches[-1].start, stretches[-1].end)
    return stretches


def _signs_of_life(history: RunHistory) -> Iterator[tuple[int, int]]:
    """(term, time) of what a driver wrote. The end of an attempt that its successor closed is none, nor is the row of a shard,
    which names the term that made it: its successor may have written it.
    """
    for lease in history.leases:
        if lease.renewed_at is not None:
            yield lease.term, lease.renewed_at
    for segment in history.segments:
        yield segment.term, segment.started_at
    for attempt in history.attempts:
        yield attempt.term, attempt.dispatched_at or attempt.planned_at
        if attempt.ended_at is not None and attempt.reason != DRIVER_LOST:
            yield attempt.term, attempt.ended_at


def span_of(attempt: AttemptTimes, stretch: Stretch) -> Span:
    """From the intent to the end, as far as its driver is known to have lived."""
    start = clip(attempt.planned_at, stretch.start, stretch.end)
    return start, stretch.end if attempt.ended_at is None else clip(attempt.ended_at, start, stretch.end)


def clip(time: int, low: int, high: int) -> int:
    """The time, or the bound that it lies beyond."""
    return max(low, min(time, high))
