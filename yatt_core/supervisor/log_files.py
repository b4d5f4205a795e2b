"""Logs of services that run for weeks: bounded, what was written last kept.

Consumes a file that a process appends to, and goes on appending to; produces `NAME.1` beside it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def keep_bounded(log: Path, most: int) -> bool:
    """Turns a log that is longer than this into `NAME.1`, in place of an earlier one; True if it did.

    The file itself stays, because its writer has it open, and is emptied: a line that comes between the copy and that is lost.
    Raises `OSError`, with the log as it was, for a disk that is full.
    """
    if log.stat().st_size <= most:
        return False
    copy, kept = log.with_name(log.name + ".new"), log.with_name(log.name + ".1")
    try:
        shutil.copyfile(log, copy)
        copy.replace(kept)
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    os.truncate(log, 0)
    return True
