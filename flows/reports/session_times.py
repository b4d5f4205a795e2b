"""Which driver was there when: a run's drivers' sessions, from the times in the ledger.

A session begins when the lease is taken. It ends as its driver booked it; where the driver was lost, with its last sign of life.
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
class SessionSpan:
    """A driver's time under one term, as far as there is any sign of it. lost: it did not end it itself (or has not yet).

    replaced: another driver came after it.
    """

    term: int
    start: int
    end: int
    lost: bool
    replaced: bool = False
    attempts: list[AttemptTimes] = field(default_factory=list)


def session_spans(history: RunHistory) -> list[SessionSpan]:
    """The drivers' sessions in order, none overlapping. An operator's command that took the lease is none."""
    booked = {session.term: session for session in history.sessions}
    signs: dict[int, int] = {}
    for term, at in _signs_of_life(history):
        signs[term] = max(at, signs.get(term, at))
    attempts: dict[int, list[AttemptTimes]] = defaultdict(list)
    for attempt in history.attempts:
        attempts[attempt.term].append(attempt)
    spans: list[SessionSpan] = []
    for lease in history.leases:
        session = booked.get(lease.term)
        if session is None and lease.released_at is not None:
            continue
        ended = None if session is None or session.outcome == LOST else session.ended_at
        end = signs.get(lease.term, lease.taken_at) if ended is None else ended
        spans.append(SessionSpan(lease.term, lease.taken_at, end, ended is None, attempts=attempts[lease.term]))
    for one, after in pairwise(spans):
        one.replaced = True
        after.start = max(one.start, after.start)
        one.end = min(max(one.start, one.end), after.start)
    if spans:
        spans[-1].end = max(spans[-1].start, spans[-1].end)
    return spans


def _signs_of_life(history: RunHistory) -> Iterator[tuple[int, int]]:
    """(term, time) of what a driver wrote. The end of an attempt that its successor closed is none, nor is the row of a shard,
    which names the term that made it: its successor may have written it.
    """
    for lease in history.leases:
        if lease.renewed_at is not None:
            yield lease.term, lease.renewed_at
    for session in history.sessions:
        yield session.term, session.started_at
    for attempt in history.attempts:
        yield attempt.term, attempt.dispatched_at or attempt.planned_at
        if attempt.ended_at is not None and attempt.reason != DRIVER_LOST:
            yield attempt.term, attempt.ended_at


def span_of(attempt: AttemptTimes, session: SessionSpan) -> Span:
    """From the intent to the end, as far as its driver is known to have lived."""
    start = clip(attempt.planned_at, session.start, session.end)
    return start, session.end if attempt.ended_at is None else clip(attempt.ended_at, start, session.end)


def clip(time: int, low: int, high: int) -> int:
    """The time, or the bound that it lies beyond."""
    return max(low, min(time, high))
