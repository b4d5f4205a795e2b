"""The times of a run's driver sessions, from the ledger.

A session begins when the lease is taken. It ends when its driver recorded the end or, if the driver was lost, at
its last sign of life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from db.read.history import AttemptTimes, RunHistory
from db.write.lease import DRIVER_LOST, LOST
from flows.run.lease import is_keeper

Span = tuple[int, int]


@dataclass(slots=True)
class SessionSpan:
    """The time of one driver under one term.

    start, end: milliseconds since 1970.
    lost: the driver did not record the end of the session (or has not yet).
    replaced: another driver came after it.
    """

    term: int
    start: int
    end: int
    lost: bool
    replaced: bool = False
    attempts: list[AttemptTimes] = field(default_factory=list)


def session_spans(history: RunHistory) -> list[SessionSpan]:
    """Returns the driver sessions in order, without overlaps; leases of keepers and of operators' commands are left out."""
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
        if session is None and (lease.released_at is not None or is_keeper(lease.holder)):
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
    """Yields (term, time) of everything that a driver wrote.

    The end of an attempt that a successor closed does not count. Nor do rows of shards: they name the term that made
    them, but a successor may have written them.
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
    """Returns the span of an attempt from its plan to its end, within the known lifetime of its driver."""
    start = clip(attempt.planned_at, session.start, session.end)
    return start, session.end if attempt.ended_at is None else clip(attempt.ended_at, start, session.end)


def clip(time: int, low: int, high: int) -> int:
    """Limits a time to the range from `low` to `high`."""
    return max(low, min(time, high))
