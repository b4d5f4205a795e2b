"""Reads the logs of a run: JSON-lines files, one for each actor and term, each in order of time.

`LogTail` reads each record once, as records are written; `LogEnd` reads a file's newest records backwards; `Filter` selects
records.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.logs import COPIED, LOG_NAME, LOST, NOTE

LEVELS = ("debug", "info", "warning", "error", "critical")

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects records by the given criteria; None matches all.

    actor: an actor's name or the beginning of it.
    level: the minimum level.
    """

    iteration: int | None = None
    phase: str | None = None
    actor: str | None = None
    level: str = "debug"

    def __call__(self, record: Record) -> bool:
        """Returns True if the record matches."""
        return (
            (self.iteration is None or record.get("iteration") == self.iteration)
            and (self.phase is None or record.get("phase") == self.phase)
            and (self.actor is None or _begins(str(record.get("actor", "")), self.actor))
            and LEVELS.index(record["level"]) >= LEVELS.index(self.level)
        )


def _begins(actor: str, wanted: str) -> bool:
    """Returns True if the name begins with `wanted` and no number is cut: controller-1 does not match controller-10."""
    cut = wanted[-1:].isdigit() and actor[len(wanted) :][:1].isdigit()
    return actor.startswith(wanted) and not cut


def log_files(folder: Path) -> list[Path]:
    """Returns the run's log files and the copies of other nodes', those of the newest drivers first, without links."""
    found = []
    for path in (*folder.glob("*.jsonl"), *(path for copied in _copied(folder) for path in copied.glob("*.jsonl"))):
        match = LOG_NAME.fullmatch(path.name)
        if match is not None and path.is_file() and not path.is_symlink():
            found.append(((int(match["term"]), int(match["part"] or 1)), path))
    return [path for _, path in sorted(found, reverse=True)]


def actor_of(path: Path) -> str:
    """Returns the actor that wrote one of the `log_files`."""
    match = LOG_NAME.fullmatch(path.name)
    assert match is not None, path
    return match["actor"]


def node_of(path: Path) -> str | None:
    """Returns the node of which one of the `log_files` is a copy; None for the driver's own disk."""
    name = path.parent.name
    return name.removeprefix(COPIED).rpartition(".")[0] if name.startswith(COPIED) else None


@dataclass(frozen=True, slots=True)
class LostLogs:
    """A node that is gone, with the log records that had not been copied.

    since: when it was last reached, in seconds since 1970.
    """

    node: str
    since: float


def lost_logs(folder: Path) -> list[LostLogs]:
    """Returns the nodes that are gone."""
    found = []
    for copied in _copied(folder):
        try:
            note = json.loads((copied / NOTE).read_bytes())
        except (OSError, ValueError):  # not written yet, or only in part
            continue
        if note.get(LOST) is not None:
            found.append(LostLogs(str(note["node"]), float(note[LOST])))
    return sorted(found, key=lambda lost: lost.since)


def _copied(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{COPIED}*") if path.is_dir() and not path.is_symlink())


class LogTail:
    """Reads a folder's log files repeatedly, each record once; an incomplete line is read once it is complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new_records(self) -> Iterator[Record]:
        """Yields the records written since the last call, in order of time."""
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
                    yield _placed(record, path)


class LogEnd:
    """The complete lines within a file's last `limit` bytes."""

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
        """Yields the records, newest first, leaving out a line cut off at the start."""
        try:
            stream = self._path.open("rb")
        except FileNotFoundError:  # an old part, deleted since the folder was listed
            return
        with stream:
            stream.seek(self._start)
            lines = stream.read(self.size).split(b"\n")
        for line in reversed(lines[1:] if self._start else lines):
            if (record := parsed(line)) is not None:
                yield _placed(record, self._path)


def _placed(record: Record, path: Path) -> Record:
    """Returns a record with the node that has sent it; as before if that is the driver's."""
    node = node_of(path)
    return record if node is None else {**record, "node": node}


def parsed(line: bytes) -> Record | None:
    """Returns the record in a line; None for a line that a killed process left incomplete."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(record, dict) and isinstance(record.get("time"), int | float) and record.get("level") in LEVELS
    return record if whole else None
