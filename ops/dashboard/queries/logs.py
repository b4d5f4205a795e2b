"""The newest log records of a run, by iteration, phase, actor and level.

Consumes the ends of the JSON-lines files in the run's log folder, each in order of time; produces `Logs`. Only so much of each
file is read and only so many records are looked at, so that a log of gigabytes answers at once; `whole` tells whether that was
all there is.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from db.ledger import Ledger
from flows.home import Home
from ops.cli.logs import Filter, parsed
from ops.dashboard.queries.fleet import find_line

TAIL_BYTES, ALL_BYTES = 1 << 20, 16 << 20
"""Of each file, and of all files together, at most."""
RECORDS = 10_000
"""That are looked at, the newest first, at most."""
_NAME = re.compile(r"e(?P<epoch>\d+)\.(?P<actor>.+?)(?:\.part(?P<part>\d+))?\.jsonl")


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
        tail = _Tail(path, min(TAIL_BYTES, room))
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
    actors = sorted({match["actor"] for path in files if (match := _NAME.fullmatch(path.name))})
    whole = all(tail.whole for tail in tails) and looked_at < RECORDS and len(found) <= limit
    return Logs(run, tuple(actors), whole, tuple(reversed(found[:limit])))


def log_files(folder: Path) -> list[Path]:
    """The run's log files, those of the newest drivers first; no links."""
    found = []
    for path in folder.glob("*.jsonl"):
        match = _NAME.fullmatch(path.name)
        if match is not None and path.is_file() and not path.is_symlink():
            found.append(((int(match["epoch"]), int(match["part"] or 1)), path))
    return [path for _, path in sorted(found, reverse=True)]


class _Tail:
    """The end of a file: whole lines of its last so many bytes."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        try:
            length = path.stat().st_size
        except FileNotFoundError:  # an old part, deleted since the folder was listed
            length = 0
        self._start = max(0, length - max(0, limit))
        self.size = length - self._start
        self.whole = self._start == 0

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """The records, the last one first; a line that the start cuts is left out."""
        try:
            stream = self._path.open("rb")
        except FileNotFoundError:  # an old part, deleted since the folder was listed
            return
        with stream:
            stream.seek(self._start)
            lines = stream.read(self.size).split(b"\n")
        for line in reversed(lines[1:] if self._start else lines):
            if (record := parsed(line)) is not None:
                yield record


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
