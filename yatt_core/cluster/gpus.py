"""The names and memory of this machine's GPUs, as their driver reports them. Does not import Ray, since plans use it."""

from __future__ import annotations

import subprocess

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
QUERY_SECONDS = 10.0
MIB = 1 << 20


def local_gpus() -> list[tuple[str, int]]:
    """Returns names and bytes of memory of the local GPUs; empty if there are none or their driver does not answer."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode:
        return []
    rows = [line.rsplit(",", 1) for line in answer.stdout.splitlines() if "," in line]
    return [(name.strip(), int(memory) * MIB) for name, memory in rows if memory.strip().isdigit()]
