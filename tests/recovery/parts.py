"""The living processes of a run's parts, by what they themselves said of their pids."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

_STARTED = re.compile(r"^(\S+) started, pid (\d+)$")


def living_actors(run_folder: Path) -> dict[str, int]:
    """Pids of the run's actors that live, by name (`rollout-0`); a name that was started again has its newest."""
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
    """SIGKILL; False if it was gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
