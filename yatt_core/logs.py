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
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_context: contextvars.ContextVar[Mapping[str, int | str]] = contextvars.ContextVar(
    "yatt_log_context", default=MappingProxyType({})
)
# Values of keys that name a secret, what follows `Bearer`, and passwords inside addresses never reach a log.
_SECRETS = re.compile(
    r"""(?ix)
    (?P<name> (?: password | passwd | secret | token | (?:api|access|private|secret)[_-]?key ) \\?["']? \s*[=:]\s* )
        (?: \\?"[^"\n]*" | \\?'[^'\n]*' | \\?["']?[^\s"',;&]+ )
    | (?P<scheme> \b(?:bearer|authorization["']?\s*[=:]\s*["']?basic)\s+ ) [\w.~+/=-]+
    | (?P<user> ://[^\s/@:]*: ) [^\s"'<>]* (?=@)
    """
)


def redact(text: str) -> str:
    """The text with the values of secrets replaced."""
    return _SECRETS.sub(lambda match: f"{match['name'] or match['scheme'] or match['user']}***", text)


@contextmanager
def log_context(**fields: int | str) -> Iterator[None]:
    """Marks what is logged inside with the iteration and phase at hand."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


class JsonLinesFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, actor: str) -> None:
        super().__init__()
        self._actor = actor

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON, secrets redacted."""
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        body = {"time": round(record.created, 3), "level": record.levelname.lower(), "actor": self._actor}
        body |= {**_context.get(), "logger": record.name, "message": redact(message)}
        return json.dumps(body)


@dataclass(frozen=True, slots=True)
class ProcessLabel:
    """Who writes a log."""

    name: str
    pid: int
    node: str


def log_file(run_folder: Path, actor: str, epoch: int) -> Path:
    """Where an actor of an epoch logs."""
    return run_folder / "logs" / f"e{epoch:04d}.{actor}.jsonl"


def actor_logs(run_folder: Path, actor: str, epoch: int) -> ProcessLabel:
    """Sends YATT's and Python's log records of this process to the actor's file; returns who it is."""
    path = log_file(run_folder, actor, epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(JsonLinesFormatter(actor))
    root = logging.getLogger()
    root.addHandler(handler)
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
