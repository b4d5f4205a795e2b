"""Bounded logs for services that run for weeks; the most recent output is kept.

Consumes a log that a process keeps open and appends to; produces `NAME.1` next to it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def keep_bounded(log: Path, most: int) -> bool:
    """Moves the content of a log longer than `most` bytes to `NAME.1`, which it replaces; returns True if it did.

    The log is copied, then emptied, because its writer has it open. A line written between copy and truncation is
    lost. Raises `OSError`, leaving the log unchanged, if the disk is full.
    """
    if log.stat().st_size <= most:
        return False
    copy = log.with_name(log.name + ".new")
    kept = log.with_name(log.name + ".1")
    try:
        shutil.copyfile(log, copy)
        copy.replace(kept)
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    os.truncate(log, 0)
    return True
