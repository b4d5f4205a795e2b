"""The newest log records of a run, by iteration, phase, actor and level.

Consumes the ends of the JSON-lines files in the run's log folder, each in order of time; produces `Logs`. Only so much of each
file is read and only so many records are looked at, so that a log of gigabytes answers at once; `whole` tells whether that was
all there is.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from db.ledger import Ledger
from flows.run.home import Home
from ops.queries.log_files import Filter, LogEnd, actor_of, log_files
from ops.queries.run_list import find_line

TAIL_BYTES, ALL_BYTES = 1 << 20, 16 << 20
"""Of each file, and of all files together, at most."""
RECORDS = 10_000
"""That are looked at, the newest first, at most."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record. time: seconds since 1970."""

    time: float
    level: str
    actor: str
    iteration: int | None
    phase: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Logs:
    """The newest records that were asked for, oldest first. actors: those that have logs. whole: nothing was left out."""

    run: str
    actors: tuple[str, ...]
    whole: bool
    records: tuple[LogRecord, ...]


def logs(ledger: Ledger, home: Home, run: str, wanted: Filter, limit: int = 200) -> Logs:
    """The newest records of a run that a filter lets through. Raises `RunNotFound`."""
    find_line(ledger, run)
    files = log_files(home.run_folder(run) / "logs")
    tails, room = [], ALL_BYTES
    for path in files:
        tail = LogEnd(path, min(TAIL_BYTES, room))
        tails.append(tail)
        room -= tail.size
    merged = heapq.merge(*(tail.newest_first() for tail in tails), key=lambda record: -float(record["time"]))
    found, looked_at = list[LogRecord](), 0
    for record in islice(merged, RECORDS):
        looked_at += 1
        if wanted(record):
            found.append(_record(record))
            if len(found) > limit:  # one more than is told says that there are more
                break
    actors = sorted({actor_of(path) for path in files})
    whole = all(tail.whole for tail in tails) and looked_at < RECORDS and len(found) <= limit
    return Logs(run, tuple(actors), whole, tuple(reversed(found[:limit])))


def _record(record: Mapping[str, Any]) -> LogRecord:
    iteration, phase = record.get("iteration"), record.get("phase")
    return LogRecord(
        time=float(record["time"]),
        level=str(record["level"]),
        actor=str(record.get("actor", "")),
        iteration=iteration if isinstance(iteration, int) else None,
        phase=None if phase is None else str(phase),
        message=str(record.get("message", "")),
    )
