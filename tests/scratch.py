"""Says where `make test` has its temporary files: in memory if enough of it is free, else below the repository.

`python -m tests.scratch` prints the folder. What the tests kill are processes, which lose nothing that they have written, so
that their many thousands of syncs to a disk, some milliseconds each, would show nothing. What a sync is for is shown by
`tests/storage.py`, a disk that forgets what was not synced.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IN_MEMORY = Path("/dev/shm")
LEAST_IN_MEMORY = 8 << 30
"""Bytes that must be free in the folder; a whole execution leaves about 3 GB."""
LEAST_MEMORY = 16 << 30
"""Bytes of memory that processes must be able to get: they take up to 12 GB, and the files the rest."""
AVAILABLE = "MemAvailable:"


def scratch_folder(root: Path, in_memory: Path = IN_MEMORY, facts: Path = Path("/proc/meminfo")) -> Path:
    """Returns the folder for a checkout.

    in_memory: where files are in memory.
    facts: what the kernel says about its memory.
    """
    below = root / ".tmp"
    if not facts.exists() or not os.access(in_memory, os.W_OK):
        return below
    lines = [line.split() for line in facts.read_text().splitlines()]
    available = next((int(words[1]) << 10 for words in lines if words[0] == AVAILABLE), 0)
    disk = os.statvfs(in_memory)
    if available < LEAST_MEMORY or disk.f_bavail * disk.f_frsize < LEAST_IN_MEMORY:
        return below
    # A short path, since it holds sockets; another checkout has another one.
    return in_memory / f"yatt-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


if __name__ == "__main__":
    sys.stdout.write(f"{scratch_folder(ROOT)}\n")
