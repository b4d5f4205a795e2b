"""Identifies the holder of a lease and checks whether that process still runs on this host.

Reads /proc; changes nothing.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, identified so that no later process can be mistaken for it.

    host: the machine and process-id namespace in which it runs.
    process_start: clock ticks from the machine's boot to the start of the process.
    text: human-readable name of the process.
    """

    host: str
    boot_id: str
    pid: int
    process_start: int
    text: str


def this_process(text: str = "") -> Holder:
    """Returns the calling process.

    text: what the process does, such as the name of its flow run.
    """
    pid = os.getpid()
    start = _process_start(pid)
    assert start is not None, "a process always finds itself in /proc"
    name = f"{text or 'driver'} (pid {pid} on {socket.gethostname()})"
    return Holder(host=_host(), boot_id=_boot_id(), pid=pid, process_start=start, text=name)


def holder_of(lease: Any) -> Holder | None:
    """Returns the holder from a lease's row; None if the lease is free."""
    if lease.holder is None:
        return None
    return Holder(
        host=lease.host, boot_id=lease.boot_id, pid=lease.pid, process_start=lease.process_start, text=lease.holder
    )


def live_holder(lease: Any, now: int) -> Holder | None:
    """Returns the holder from a lease's row; None if the lease is free or has expired, or its process has ended.

    now: milliseconds since 1970.
    """
    holder = holder_of(lease)
    return holder if holder is not None and lease.expires_at > now and not is_gone(holder) else None


def holder_columns(holder: Holder | None) -> dict[str, Any]:
    """Returns the columns of a lease's row that name its holder; None for a lease that is free."""
    if holder is None:
        return dict.fromkeys(("holder", "host", "boot_id", "pid", "process_start"))
    return {
        "holder": holder.text,
        "host": holder.host,
        "boot_id": holder.boot_id,
        "pid": holder.pid,
        "process_start": holder.process_start,
    }


def is_gone(holder: Holder) -> bool:
    """Returns True if the process has certainly ended.

    Returns False if it still runs, or is on another host, where its state is unknown.
    """
    if holder.host != _host():
        return False
    return holder.boot_id != _boot_id() or _process_start(holder.pid) != holder.process_start


def _host() -> str:
    # Containers may share a host's name and boot id; a pid is meaningful only within its own pid namespace.
    machine = Path("/etc/machine-id")
    machine_id = machine.read_text().strip()[:12] if machine.exists() else ""
    return f"{socket.gethostname()}/{machine_id}/{(PROC / 'self/ns/pid').readlink()}"


def _boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _process_start(pid: int) -> int | None:
    """Returns a process's start time in clock ticks; None if there is no such process, or only a zombie.

    A process whose other threads have outlived the first one, as they briefly do after a kill, is not counted as a
    zombie, since it still holds its devices and files.
    """
    try:
        line = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = line.rpartition(")")[2].split()  # the name before it may contain spaces and parentheses
    state = fields[0]
    threads = int(fields[17])
    start = int(fields[19])
    return None if state in "ZX" and threads <= 1 else start
