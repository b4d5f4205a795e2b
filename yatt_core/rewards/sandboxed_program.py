"""Runs a Python program that a policy wrote, in a fresh interpreter under limits.

Consumes the program's files, its standard input and its limits. Produces whether the interpreter ended with exit code 0,
and what it wrote to standard output. Two processes are forked: one enters the namespaces and waits, the other is
process 1 in them and becomes the interpreter, so everything ends with it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from yatt_core.errors import InfrastructureError
from yatt_core.orphans import end_with_parent
from yatt_core.rewards.isolation import close_on_exec, enter_namespaces, filter_calls, limit_resources, protect_files

MAIN = "main.py"
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The whole environment: sets have the same order in each run, and libraries start no threads for each core."""
# Like -I, except that the environment above is read: -I would ignore the hash seed.
INTERPRETER = (sys.executable, "-s", "-P", "-B", MAIN)


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Limits of one program.

    cpu_seconds: processor time; the program has only one process, so this counts everything that it does.
    wall_seconds: ends programs that wait for something; the only limit that depends on the load of the machine.
    output_bytes: maximum size of the standard output, and of each file.
    namespaces: whether the program is cut off from network, other processes, and files that it could change.
    """

    cpu_seconds: int
    wall_seconds: float
    memory_bytes: int
    output_bytes: int
    namespaces: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended.

    succeeded: whether its exit code was 0, within all limits.
    """

    succeeded: bool
    output: bytes


def run_program(files: Mapping[str, str], standard_input: bytes, limits: ProgramLimits) -> Ended:
    """Runs `main.py` among the files in an empty folder, which no longer exists afterwards.

    Raises `InfrastructureError`, with the reason, if the system does not let the program start.
    """
    descriptors = list[int]()
    folder = ""
    try:
        folder = tempfile.mkdtemp(prefix="yatt-code-")
        for name in ("input", "output"):
            descriptors.append(os.memfd_create(name))
        descriptors += os.pipe()
        given, written, report, _ = descriptors
        with open(given, "wb", closefd=False) as stream:
            stream.write(standard_input)
        os.set_blocking(report, False)
        succeeded = _run(folder, files, descriptors, limits)
        if refusal := _read(report):
            raise InfrastructureError(f"cannot start the program of a response: {refusal.decode()}")
        return Ended(succeeded, os.pread(written, limits.output_bytes, 0))
    except OSError as error:
        raise InfrastructureError(f"cannot run the program of a response: {error}") from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: str, files: Mapping[str, str], descriptors: Sequence[int], limits: ProgramLimits) -> bool:
    """Returns whether the program succeeds within its limits; nothing of it is left."""
    given, written, _, reported = descriptors
    pid = os.fork()
    if pid == 0:
        _guard(folder=folder, files=files, streams=(given, written), reported=reported, limits=limits)
    try:
        ended = _wait(pid, limits.wall_seconds)
    finally:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]  # that of its own end if it has ended
    return ended and status == 0


def _wait(pid: int, seconds: float) -> bool:
    """Returns whether a child ends in time."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 12)
    except BlockingIOError:  # nothing was reported
        return b""


def _guard(
    folder: str, files: Mapping[str, str], streams: tuple[int, int], reported: int, limits: ProgramLimits
) -> NoReturn:
    """Runs in the forked process: starts the program's process, and ends as that does."""
    code = 1
    try:
        end_with_parent()
        os.setsid()
        if limits.namespaces:
            enter_namespaces()
        pid = os.fork()
        if pid == 0:
            _become_program(folder, files, streams, limits)
        code = int(os.waitpid(pid, 0)[1] != 0)
    except (OSError, ValueError, MemoryError) as error:
        os.write(reported, (str(error) or type(error).__name__).encode())
    finally:
        os._exit(code)


def _become_program(folder: str, files: Mapping[str, str], streams: tuple[int, int], limits: ProgramLimits) -> NoReturn:
    """Runs in the program's process: restricts it, and executes the interpreter."""
    end_with_parent()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if limits.namespaces:
        protect_files(folder)
    os.chdir(folder)
    os.umask(0o077)
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8", errors="replace")
    os.lseek(streams[0], 0, os.SEEK_SET)
    os.dup2(streams[0], 0)
    os.dup2(streams[1], 1)
    os.dup2(nowhere, 2)
    close_on_exec()
    filter_calls(sockets=not limits.namespaces)
    # Last: this process, a copy of the one that scores, may already have more memory than the program may.
    limit_resources(limits.cpu_seconds, limits.memory_bytes, limits.output_bytes)
    os.execve(INTERPRETER[0], INTERPRETER, ENVIRONMENT)
