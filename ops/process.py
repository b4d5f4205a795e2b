"""Prepares a process: keeps caches inside the home folder, and keeps output working after its reader has ended.

A worker reads the output of its drivers through pipes, which break if the worker is killed; from then on, the
output goes to a file.
"""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.run.home import Home

STANDARD = (1, 2)


def outlive_readers(log: Path) -> None:
    """Redirects standard output and error to `log` once the pipe they write to has no reader.

    Without this, the next write would end the process in the middle of a line: Prefect's console handler raises
    `SystemExit` if a record cannot be written. The file is created only when it is needed.
    """
    threading.Thread(target=_watch, args=(log,), daemon=True, name="outlive-readers").start()


def _watch(log: Path) -> None:
    poll = select.poll()
    open_ones = set(STANDARD)
    for descriptor in STANDARD:
        poll.register(descriptor, 0)  # errors, such as a pipe without a reader, are always reported
    while open_ones:
        for descriptor, _ in poll.poll():
            poll.unregister(descriptor)
            open_ones.remove(descriptor)
            _redirect(descriptor, log)


def _redirect(descriptor: int, log: Path) -> None:
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(file, descriptor)
    os.close(file)


def keep_caches_inside(home: Home) -> None:
    """Moves matplotlib's font cache into the home folder; it would otherwise be in the user's own folder."""
    os.environ.setdefault("MPLCONFIGDIR", str(home.folder / ".matplotlib"))
