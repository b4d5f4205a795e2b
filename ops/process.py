"""Prepares a process: caches that stay inside the home folder, and output that outlives whoever reads it.

A worker reads the output of its drivers through pipes, which end when it is killed; from then on the output goes to a file.
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
    """Has what is written to pipes without a reader go to `log`, where it would end the process in the midst of a line.

    The file is made only then. Prefect's console would leave by `SystemExit` at the first record that nobody takes.
    """
    threading.Thread(target=_watch, args=(log,), daemon=True, name="outlive-readers").start()


def _watch(log: Path) -> None:
    poll, open_ones = select.poll(), set(STANDARD)
    for descriptor in STANDARD:
        poll.register(descriptor, 0)  # an error is told unasked, and a pipe without a reader is one
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
    """Some of our libraries import matplotlib, whose cache of fonts would otherwise lie in the user's own folder."""
    os.environ.setdefault("MPLCONFIGDIR", str(home.folder / ".matplotlib"))
