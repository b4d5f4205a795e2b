"""Unambiguous identities of processes, and how to end a process together with everything it started.

A pid alone does not identify a process, because pids are reused. `ProcessIdentity` adds the host, the boot and
the process's start time. Signals go to single pids or to groups whose members were verified first, never to
process names. Linux only (reads /proc).
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
POLL_SECONDS = 0.02
OFFSPRING_POLL_SECONDS = 0.1
KILL_SECONDS = 5.0
URGENT = 0.75
"""The fraction of the grace period after which processes are asked to end a second time."""
NOBODY = frozenset({errno.ESRCH, errno.ENOENT, errno.EINVAL})
"""Errors of `pidfd_open` for a number that is not a process id; the last two occur if it is now a thread's id."""
STAT_STATE = 0
STAT_PARENT = 1
STAT_SESSION = 3
STAT_THREADS = 17
STAT_START_TIME = 19


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process in one boot of one host.

    start_time: seconds from boot to the process's start.
    """

    host: str
    boot_id: str
    pid: int
    start_time: float

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Returns the identity of this process."""
        identity = identity_of(os.getpid())
        assert identity is not None
        return identity


def _stat(pid: int) -> list[str] | None:
    """Returns the fields of /proc/PID/stat from the state onwards (man 5 proc_pid_stat).

    Returns None if the process is gone or a zombie. While other threads outlive the main thread, as they do for
    a moment after a kill, the process still holds its ports and files and is reported as running.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[STAT_STATE] in "ZX" and int(fields[STAT_THREADS]) <= 1 else fields


def identity_of(pid: int) -> ProcessIdentity | None:
    """Returns the identity of a running process on this host; None if there is no such process or it is a zombie."""
    fields = _stat(pid)
    if fields is None:
        return None
    start_time = int(fields[STAT_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return ProcessIdentity(socket.gethostname(), BOOT_ID_FILE.read_text().strip(), pid, start_time)


def is_local(identity: ProcessIdentity) -> bool:
    """Returns True if this is or was a process on this host, so that its state can be checked here."""
    return identity.host == socket.gethostname()


def is_alive(identity: ProcessIdentity) -> bool:
    """Returns True if exactly this process is still running on this host; False for a process on another host."""
    return identity_of(identity.pid) == identity


def send_signal(identity: ProcessIdentity, number: int) -> bool:
    """Sends a signal to exactly this process; returns False if it is gone.

    The descriptor pins the process between the check and the signal, so that a process that reuses the pid is
    never hit.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError as error:
        if error.errno in NOBODY:
            return False
        raise
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def session_members(sessions: Collection[int], mark: str) -> list[ProcessIdentity]:
    """Returns the running processes of these sessions and those that were started with a mark in their environment.

    A session also contains Ray's workers, which leave the process group; the mark also finds processes that
    left the session.

    sessions: session ids, each the pid of a session leader.
    mark: `NAME=start of value`.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        fields = _stat(int(entry.name))
        if fields is None:
            continue
        if int(fields[STAT_SESSION]) in sessions or _is_marked(entry, mark):
            identity = identity_of(int(entry.name))
            if identity is not None:
                found.append(identity)
    return found


def offspring(leader: ProcessIdentity | None, mark: str) -> list[ProcessIdentity]:
    """Returns the running processes that carry the mark and were started by this leader or by one that is gone."""
    members = [member for member in session_members([], mark) if member != leader]
    pids = {member.pid for member in members}
    return [member for member in members if (fields := _stat(member.pid)) and int(fields[STAT_PARENT]) not in pids]


def end_offspring(leader: ProcessIdentity | None, mark: str, grace: float) -> None:
    """Asks the processes started by a leader to end, and waits up to `grace` seconds for them.

    The leader itself may start more processes in the meantime. Each process gets SIGTERM immediately and again
    when most of that time has passed; YATT's drivers interpret the first as "end after the iteration" and the second
    as "end now".
    """
    asked: set[ProcessIdentity] = set()
    began = time.monotonic()
    urged = False
    while children := offspring(leader, mark):
        elapsed = time.monotonic() - began
        if elapsed >= grace:
            return
        if elapsed >= URGENT * grace and not urged:
            asked = set()
            urged = True
        for child in children:
            if child not in asked:
                send_signal(child, signal.SIGTERM)
                asked.add(child)
        time.sleep(OFFSPRING_POLL_SECONDS)


def _is_marked(process: Path, mark: str) -> bool:
    try:
        environment = (process / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return any(variable.startswith(mark.encode()) for variable in environment.split(b"\0"))


def end_sessions(leaders: Collection[ProcessIdentity], mark: str, grace: float) -> int:
    """Ends the leaders' sessions and all processes with the mark within about `grace` + 5 s; returns their number.

    The leaders get SIGTERM and have `grace` seconds to shut down cleanly; the remaining processes then get
    SIGKILL.

    mark: as for `session_members`.
    """
    sessions = {leader.pid for leader in leaders if is_local(leader) and _session_is_ours(leader)}
    members = session_members(sessions, mark)
    count = len(members)
    for leader in leaders:
        send_signal(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while members and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        members = [member for member in members if is_alive(member)]
    deadline = time.monotonic() + KILL_SECONDS
    while (members := session_members(sessions, mark)) and time.monotonic() < deadline:
        for member in members:
            send_signal(member, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return count


def _session_is_ours(leader: ProcessIdentity) -> bool:
    """Returns False if the leader's pid now belongs to another process.

    A pid is not reused while its session has a member.
    """
    if leader.boot_id != BOOT_ID_FILE.read_text().strip():
        return False
    now = identity_of(leader.pid)
    return now is None or now == leader
