"""Restricts the calling process before it executes code that a policy wrote. Linux on x86-64 only.

Consumes limits and a folder. Produces no value: afterwards the process has namespaces of its own (user, network, mounts,
processes, IPC), in which it reaches no network and no other process and writes only to its folder; it cannot start
processes, and its resources are limited. Each function raises `OSError`, with what was refused, if the kernel refuses.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Sequence
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER = 0x10000000
NEW_NET = 0x40000000
NEW_MOUNTS = 0x00020000
NEW_PIDS = 0x20000000
NEW_IPC = 0x08000000
NOBODY = 65534
"""User and group inside the namespace: not 0, so that the executed program has no capabilities there."""

MOUNT_SETATTR = 442
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_READ_ONLY = 0x1
MOUNT_NO_SETUID = 0x2
MOUNT_NO_DEVICES = 0x4
NO_SETUID = 2
NO_DEVICES = 4
FOLDER_BYTES = 16 << 20
FOLDER_FILES = 256
OPEN_FILES = 64
CLOSE_RANGE = 436
CLOSE_ON_EXEC = 4
LAST_DESCRIPTOR = 0xFFFFFFFF

PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
FILTER = 2
X86_64 = 0xC000003E
X32 = 0x40000000
LOAD = 0x20
EQUAL = 0x15
AT_LEAST = 0x35
ANY_BIT = 0x45
RETURN = 0x06
NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16
"""Offsets in the kernel's `seccomp_data`."""
ALLOW = 0x7FFF0000
REFUSE = 0x00050000
KILL = 0x80000000
CLONE = 56
CLONE3 = 435
CLONE_THREAD = 0x10000
PRCTL = 157
PR_SET_PDEATHSIG = 1
FORK = 57
VFORK = 58
SOCKET = 41
PTRACE = 101
UNSHARE = 272
SETNS = 308
IO_URING_SETUP = 425
"""Numbers of system calls on x86-64."""


def enter_namespaces() -> None:
    """Moves this process to new namespaces; its next child is process 1 of the new namespace of processes."""
    user = os.getuid()
    group = os.getgid()
    _checked(LIBC.unshare(NEW_USER | NEW_NET | NEW_MOUNTS | NEW_PIDS | NEW_IPC), "new namespaces (unshare)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {user} 1"), ("gid_map", f"{NOBODY} {group} 1")):
        Path("/proc/self", name).write_text(text)


def protect_files(folder: str) -> None:
    """Makes all files read-only and devices inaccessible for this process; a folder becomes an empty one in memory."""
    attributes = struct.pack("QQQQ", MOUNT_READ_ONLY | MOUNT_NO_SETUID | MOUNT_NO_DEVICES, 0, 0, 0)
    _checked(
        LIBC.syscall(MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, ctypes.c_size_t(len(attributes))),
        "read-only files (mount_setattr)",
    )
    options = f"size={FOLDER_BYTES},nr_inodes={FOLDER_FILES},mode=700".encode()
    _checked(
        LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(NO_SETUID | NO_DEVICES), options),
        "a folder in memory (mount)",
    )


def limit_resources(cpu_seconds: int, memory_bytes: int, file_bytes: int) -> None:
    """Limits this process; it is killed when its processor time is over."""
    limits = {
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (most, most))


def close_on_exec() -> None:
    """Keeps every descriptor except standard input, output and error from the program that this process executes."""
    first = ctypes.c_uint(3)
    last = ctypes.c_uint(LAST_DESCRIPTOR)
    _checked(LIBC.syscall(CLOSE_RANGE, first, last, CLOSE_ON_EXEC), "closed descriptors (close_range)")


def filter_calls(sockets: bool) -> None:
    """Has the kernel refuse new processes (threads are allowed), new namespaces and, without `sockets`, new sockets."""
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, f"system calls are filtered only on x86-64, not on {platform.machine()}")
    refused = [FORK, VFORK, PTRACE, UNSHARE, SETNS, IO_URING_SETUP, *(() if sockets else (SOCKET,))]
    # If clone3 is missing, the C library uses clone, whose flags a filter can read.
    program = [
        _step(LOAD, ARCHITECTURE),
        _step(EQUAL, X86_64, 1, 0),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER),
        *_verdict_if(AT_LEAST, X32, KILL),
        *_verdict_if(EQUAL, CLONE3, REFUSE | errno.ENOSYS),
        *(step for number in refused for step in _verdict_if(EQUAL, number, REFUSE | errno.EPERM)),
        _step(EQUAL, PRCTL, 0, 4),  # the program must not survive its guard
        _step(LOAD, FIRST_ARGUMENT),
        *_verdict_if(EQUAL, PR_SET_PDEATHSIG, REFUSE | errno.EPERM),
        _step(RETURN, ALLOW),
        _step(EQUAL, CLONE, 0, 3),
        _step(LOAD, FIRST_ARGUMENT),
        _step(ANY_BIT, CLONE_THREAD, 1, 0),
        _step(RETURN, REFUSE | errno.EPERM),
        _step(RETURN, ALLOW),
    ]
    steps = ctypes.create_string_buffer(b"".join(program))
    filter_program = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(steps))
    zero = ctypes.c_ulong(0)
    _checked(LIBC.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero), "no new privileges (prctl)")
    filtered = LIBC.prctl(PR_SET_SECCOMP, ctypes.c_ulong(FILTER), filter_program, zero, zero)
    _checked(filtered, "a filter of system calls (seccomp)")


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Returns one instruction of a filter; `if_true` and `if_false` are numbers of instructions to skip."""
    return struct.pack("HBBI", code, if_true, if_false, value)


def _verdict_if(code: int, value: int, verdict: int) -> Sequence[bytes]:
    return [_step(code, value, 0, 1), _step(RETURN, verdict)]


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
