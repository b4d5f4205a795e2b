"""Reads the logs of a run: JSON-lines files, one for each actor and term, each in order of time.

`LogTail` reads every record once, as they come; `LogEnd` reads the newest of a file backwards. `Filter` says which are wanted.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.logs import LOG_NAME

LEVELS = ("debug", "info", "warning", "error", "critical")

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are wanted; none: all. actor: an actor's name or its beginning. level: the lowest one."""

    iteration: int | None = None
    phase: str | None = None
    actor: str | None = None
    level: str = "debug"

    def __call__(self, record: Record) -> bool:
        """True for a wanted record."""
        return (
            (self.iteration is None or record.get("iteration") == self.iteration)
            and (self.phase is None or record.get("phase") == self.phase)
            and (self.actor is None or _begins(str(record.get("actor", "")), self.actor))
            and LEVELS.index(record["level"]) >= LEVELS.index(self.level)
        )


def _begins(actor: str, wanted: str) -> bool:
    """A number is not cut: controller-1 is no beginning of controller-10."""
    cut = wanted[-1:].isdigit() and actor[len(wanted) :][:1].isdigit()
    return actor.startswith(wanted) and not cut


def log_files(folder: Path) -> list[Path]:
    """The run's log files, those of the newest drivers first; no links."""
    found = []
    for path in folder.glob("*.jsonl"):
        match = LOG_NAME.fullmatch(path.name)
        if match is not None and path.is_file() and not path.is_symlink():
            found.append(((int(match["term"]), int(match["part"] or 1)), path))
    return [path for _, path in sorted(found, reverse=True)]


def actor_of(path: Path) -> str:
    """The actor that wrote one of the `log_files`."""
    match = LOG_NAME.fullmatch(path.name)
    assert match is not None, path
    return match["actor"]


class LogTail:
    """Reads a folder's log files again and again, each record once; a line still being written waits for its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new_records(self) -> Iterator[Record]:
        """What was written since the last call, in order of time."""
        streams = [self._new_in(path) for path in sorted(log_files(self._folder))]
        return heapq.merge(*streams, key=lambda record: float(record["time"]))

    def _new_in(self, path: Path) -> Iterator[Record]:
        try:
            stream = path.open("rb")
        except FileNotFoundError:  # an old part, deleted since the folder was listed
            return
        with stream:
            stream.seek(self._offsets.get(path, 0))
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._offsets[path] = self._offsets.get(path, 0) + len(line)
                if (record := parsed(line)) is not None:
                    yield record


class LogEnd:
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

    def newest_first(self) -> Iterator[Record]:
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


def parsed(line: bytes) -> Record | None:
    """The record in a line; none for one that a kill tore before the next process went on behind it."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(record, dict) and isinstance(record.get("time"), int | float) and record.get("level") in LEVELS
    return record if whole else None
