"""The newest log records of a run, by iteration, phase, actor and level.

Consumes the ends of the JSON-lines files in the run's log folder, each in order of time; produces `Logs`. The bytes read per file
and the records examined are limited, so that gigabytes of logs cause no delay; `whole` is True if nothing was left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from db.ledger import Ledger
from flows.run.home import Home
from ops.queries.log_files import Filter, LogEnd, LostLogs, actor_of, log_files, lost_logs
from ops.queries.run_list import find_line

TAIL_BYTES = 1 << 20
ALL_BYTES = 16 << 20
"""Maximum number of bytes read from each file, and from all files together."""
RECORDS = 10_000
"""Maximum number of records examined, newest first."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log record.

    time: seconds since 1970.
    node: the node of which the record is a copy; None for the driver's own disk.
    """

    time: float
    level: str
    actor: str
    iteration: int | None
    phase: str | None
    message: str
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Logs:
    """The newest matching records, oldest first.

    actors: names of all actors that have logs.
    whole: True if nothing was left out.
    lost: nodes that are gone, with records that had not been copied.
    """

    run: str
    actors: tuple[str, ...]
    whole: bool
    records: tuple[LogRecord, ...]
    lost: tuple[LostLogs, ...] = ()


def logs(ledger: Ledger, home: Home, run: str, wanted: Filter, limit: int = 200) -> Logs:
    """Returns the newest records of a run that match a filter. Raises `RunNotFound`."""
    find_line(ledger, run)
    folder = home.run_folder(run) / "logs"
    files = log_files(folder)
    tails = []
    room = ALL_BYTES
    for path in files:
        tail = LogEnd(path, min(TAIL_BYTES, room))
        tails.append(tail)
        room -= tail.size
    merged = heapq.merge(*(tail.newest_first() for tail in tails), key=lambda record: -float(record["time"]))
    found = list[LogRecord]()
    looked_at = 0
    for record in islice(merged, RECORDS):
        looked_at += 1
        if wanted(record):
            found.append(_record(record))
            if len(found) > limit:  # one record more than is returned, which shows that some are left out
                break
    actors = sorted({actor_of(path) for path in files})
    whole = all(tail.whole for tail in tails) and looked_at < RECORDS and len(found) <= limit
    return Logs(
        run=run,
        actors=tuple(actors),
        whole=whole,
        records=tuple(reversed(found[:limit])),
        lost=tuple(lost_logs(folder)),
    )


def _record(record: Mapping[str, Any]) -> LogRecord:
    iteration = record.get("iteration")
    phase = record.get("phase")
    return LogRecord(
        time=float(record["time"]),
        level=str(record["level"]),
        actor=str(record.get("actor", "")),
        iteration=iteration if isinstance(iteration, int) else None,
        phase=None if phase is None else str(phase),
        message=str(record.get("message", "")),
        node=record.get("node"),
    )
