"""Finds the living processes of a run's actors by the pids that they logged."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

_STARTED = re.compile(r"^(\S+) started, pid (\d+)$")


def living_actors(run_folder: Path) -> dict[str, int]:
    """Returns the pids of the run's living actors by name (`rollout-0`); the newest pid if an actor was restarted."""
    found = {}
    for log in sorted((run_folder / "logs").glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        for line in log.read_text().splitlines():
            with suppress(ValueError):
                match = _STARTED.match(str(json.loads(line)["message"]))
                if match and _is_actor(int(match[2])):
                    found[match[1]] = int(match[2])
    return found


def _is_actor(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    except OSError:
        return False


def kill(pid: int) -> bool:
    """Kills a process; returns False if it was already gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
