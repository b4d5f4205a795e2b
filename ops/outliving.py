"""A driver that outlives whoever reads its output: a worker reads that of its drivers through pipes, which end when it is killed.

Consumes the process's standard output and error; from the moment that a reader is gone they go to a file.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from pathlib import Path

STANDARD = (1, 2)


def outlive_readers(log: Path, descriptors: Sequence[int] = STANDARD) -> None:
    """Has what is written to pipes without a reader go to `log`, where it would end the process in the midst of a line.

    The file is made only then. Prefect's console would leave by `SystemExit` at the first record that nobody takes.
    """
    threading.Thread(target=_watch, args=(log, descriptors), daemon=True, name="outlive-readers").start()


def _watch(log: Path, descriptors: Sequence[int]) -> None:
    poll, open_ones = select.poll(), set(descriptors)
    for descriptor in descriptors:
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
