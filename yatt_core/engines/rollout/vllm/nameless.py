"""Removes the names of what a vLLM process shares with others, so that nothing is left behind if it is killed.

Files in shared memory, and the file through which processes met, live on without their names until the last process
that uses them ends. Called once all processes of the engine have opened them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MEMORY = "/dev/shm/"
MEETING = "file://"


def forget_names(meeting: str) -> None:
    """Removes the names of this process's shared memory.

    meeting: address at which the processes met.
    """
    for path in {*shared_files(), *([Path(meeting.removeprefix(MEETING))] if meeting.startswith(MEETING) else [])}:
        path.unlink(missing_ok=True)


def shared_files() -> Iterator[Path]:
    """Yields the files in shared memory that this process has mapped and that still have a name."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        name = line[line.find(MEMORY) :] if MEMORY in line else ""
        if name and not name.endswith(" (deleted)"):
            yield Path(name)
