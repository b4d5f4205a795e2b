"""Logs of the actors and the driver: one JSON-lines file per process in the run folder, read by `yatt logs`.

A record has time, level, actor, iteration and phase (from the surrounding `log_context`), logger and message.
"""

from __future__ import annotations

import contextvars
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from yatt_core.fault_stacks import stand_by

PART_BYTES = 16 << 20
PARTS = 4
"""The approximate size of one part of a process's log, and the number of most recent parts kept."""
_PART = re.compile(r"\.part(\d+)\.jsonl$")
_context: contextvars.ContextVar[Mapping[str, int | str]] = contextvars.ContextVar(
    "yatt_log_context", default=MappingProxyType({})
)
# Keeps out of logs: the values of keys that name a secret, the token after `Bearer`, and passwords in URLs. The beginning of
# a sentence after `password: ` is no value.
_SECRETS = re.compile(
    r"""(?ix)
    (?P<name> (?: password | passwd | secret | token | (?:api|access|private|secret)[_-]?key ) \\?["']? \s*[=:]\s* )
        (?: \\?"[^"\n]*" | \\?'[^'\n]*'
            | (?! (?<=:[ ]) (?:expected|must|run|set|use|give|no|not|the|a|an|is|was) [ ][a-z] ) \\?["']?[^\s"',;&]+ )
    | (?P<scheme> \b(?:bearer|authorization["']?\s*[=:]\s*["']?basic)\s+ ) [\w.~+/=-]+
    | (?P<user> ://[^\s/@:]*: ) [^\s"'<>]* (?=@)
    """
)


_kept: set[str] = set()
SHORTEST_SECRET = 4
"""Shorter values are not searched for: they occur in ordinary words."""


def keep_secret(value: str) -> None:
    """Keeps a value out of everything that this process redacts from now on."""
    if len(value) >= SHORTEST_SECRET:
        _kept.add(value)


def redact(text: str) -> str:
    """Returns the text with the values of secrets replaced."""
    for value in sorted(_kept, key=len, reverse=True):
        text = text.replace(value, "***")
    return _SECRETS.sub(lambda match: f"{match['name'] or match['scheme'] or match['user']}***", text)


@contextmanager
def log_context(**fields: int | str) -> Iterator[None]:
    """Adds the current iteration and phase to the log records emitted inside."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def current_context() -> Mapping[str, int | str]:
    """Returns the fields that the surrounding `log_context` adds to log records."""
    return _context.get()


class JsonLinesFormatter(logging.Formatter):
    """Formats each record as one JSON object per line."""

    def __init__(self, actor: str) -> None:
        super().__init__()
        self._actor = actor

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as JSON with secrets redacted."""
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        body = {"time": round(record.created, 3), "level": record.levelname.lower(), "actor": self._actor}
        body |= {**_context.get(), "logger": record.name, "message": redact(message)}
        return json.dumps(body)


@dataclass(frozen=True, slots=True)
class ProcessLabel:
    """The process that writes a log."""

    name: str
    pid: int
    node: str


COPIED = "node."
"""How the names of folders with copies of other nodes' logs begin; then come the node's name and a number."""
NOTE = "node.json"
LOST = "lost_since"
"""The file in such a folder that names the node, and its key for when the node was last reached; null while it is."""
LOG_NAME = re.compile(r"t(?P<term>\d+)\.(?P<actor>.+?)(?:\.part(?P<part>\d+))?\.jsonl")
"""Matches the names that `log_file` produces."""


def log_file(run_folder: Path, actor: str, term: int, part: int = 1) -> Path:
    """Returns the path of one part of the log of an actor that was started under a term; parts are numbered from 1."""
    name = f"t{term:04d}.{actor}" + (f".part{part}" if part > 1 else "")
    return run_folder / "logs" / f"{name}.jsonl"


class PartsHandler(logging.FileHandler):
    """Writes a log in parts and keeps the most recent ones; a part is never truncated or renamed, only deleted."""

    def __init__(self, run_folder: Path, actor: str, term: int, part_bytes: int = PART_BYTES) -> None:
        self._place = (run_folder, actor, term)
        self._part_bytes = part_bytes
        first = log_file(*self._place)
        found = [
            int(match[1]) for path in first.parent.glob(f"{first.stem}.part*") if (match := _PART.search(path.name))
        ]
        self._part = max(found, default=1)
        super().__init__(log_file(*self._place, self._part), encoding="utf-8")
        self.setFormatter(JsonLinesFormatter(actor))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record; if the part is full, a new part is started first."""
        try:
            # Also writes what a full disk has refused before.
            if self.stream is not None and self.stream.tell() >= self._part_bytes:
                self.stream.close()
                self._begin_part()
        except OSError:
            self.handleError(record)
            return
        super().emit(record)

    def close(self) -> None:
        """Closes the file, with or without what a full disk still refuses."""
        try:
            super().close()
        except OSError:
            super().close()  # which has nothing left to write

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Loses a record that the disk refuses: a log must not end, nor cover with tracebacks, what it reports on."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def _begin_part(self) -> None:
        self._part += 1
        self.baseFilename = str(log_file(*self._place, self._part))
        self.stream = self._open()
        if self._part > PARTS:
            log_file(*self._place, self._part - PARTS).unlink(missing_ok=True)


def actor_logs(run_folder: Path, actor: str, term: int) -> ProcessLabel:
    """Sends YATT's and Python's log records of this process to the actor's file and no longer to any other.

    The process also stands by to write its stacks (`yatt_core.fault_stacks`).
    """
    stand_by(run_folder, actor)
    log_file(run_folder, actor, term).parent.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, PartsHandler)]:
        root.removeHandler(handler)
        handler.close()
    root.addHandler(PartsHandler(run_folder, actor, term))
    logging.getLogger("yatt_core").setLevel(logging.INFO)
    logging.getLogger("yatt_core").info("%s started, pid %d", actor, os.getpid())
    return ProcessLabel(actor, os.getpid(), socket.gethostname())


@contextmanager
def timed(timing: dict[str, float], key: str) -> Iterator[None]:
    """Adds the seconds spent inside to timing[key]."""
    started = time.monotonic()
    try:
        yield
    finally:
        timing[key] = timing.get(key, 0.0) + time.monotonic() - started
