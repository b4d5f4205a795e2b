"""Stacks of a process that hangs, taken from outside: native ones by py-spy, else Python's by the interpreter itself.

An actor stands by: a signal makes its interpreter write the Python stacks of all threads to a file, even if it holds its
lock or hangs in native code. `dump_stacks` runs on the actor's machine. It prefers py-spy, which has native frames but
needs the right to trace the process; if that is refused, the result says so and has the other stacks.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

STANDBY = Path("logs") / "stacks" / "standby"
"""The folder of the files to which the signal writes, relative to the run's folder."""
KEPT = Path("logs") / "stacks" / "native"
"""The folder of the stacks of actors that were ended because they hung, relative to the run's folder."""
KEPT_FILES = 64
SIGNAL = signal.SIGUSR2
SPY = "py-spy"
SPY_SECONDS = 20.0
WRITING_SECONDS = 3.0
"""How long the interpreter may take to write the stacks after the signal."""
QUIET_SECONDS = 0.3
"""The file is complete if it has not grown for this long."""


def stand_by(run_folder: Path, actor: str) -> None:
    """Makes the signal write this process's Python stacks to a file; replaces the files of the actor's predecessors."""
    folder = run_folder / STANDBY
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{actor}.*.txt"):
        old.unlink(missing_ok=True)
    # Open as long as the process lives: the handler may allocate nothing.
    stream = standby_file(run_folder, actor, os.getpid()).open("w", encoding="utf-8")
    faulthandler.register(SIGNAL, file=stream, all_threads=True, chain=False)


def standby_file(run_folder: Path, actor: str, pid: int) -> Path:
    """Returns the file to which an actor's process writes."""
    return run_folder / STANDBY / f"{actor}.{pid}.txt"


def dump_stacks(run_folder: str, actor: str, pid: int) -> str:
    """Returns the stacks of an actor's process and its children, or of its Python threads with why there are no others."""
    native, refused = _native(pid)
    if native:
        return f"{actor}, pid {pid}, native stacks by {SPY}:\n\n{native}"
    python = _python(standby_file(Path(run_folder), actor, pid), pid)
    return f"{actor}, pid {pid}, no native stacks: {refused}\nPython stacks by its interpreter:\n\n{python}"


def _native(pid: int) -> tuple[str, str]:
    """Returns py-spy's answer, and why there is none."""
    beside = Path(sys.executable).with_name(SPY)
    program = str(beside) if beside.exists() else shutil.which(SPY)
    if program is None:
        return "", f"{SPY} is not installed"
    command = [program, "dump", "--native", "--subprocesses", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SPY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "", f"{SPY} did not answer within {SPY_SECONDS:g} s"
    except OSError as error:
        return "", f"{SPY} could not be started: {error}"
    if done.returncode or not done.stdout.strip():
        return "", f"{SPY} was refused (exit code {done.returncode}): {' '.join(done.stderr.split())}"
    return done.stdout, ""


def _python(path: Path, pid: int) -> str:
    """Signals the process and returns what it writes."""
    if not path.exists():
        return "none: the process has not stood by to write them"
    try:
        os.kill(pid, SIGNAL)
    except OSError as error:
        return f"none: the process could not be signalled: {error}"
    deadline = time.monotonic() + WRITING_SECONDS
    size = 0
    since = time.monotonic()
    while time.monotonic() < deadline and (size == 0 or time.monotonic() - since < QUIET_SECONDS):
        time.sleep(QUIET_SECONDS / 6)
        if path.stat().st_size != size:
            size = path.stat().st_size
            since = time.monotonic()
    return path.read_text(encoding="utf-8", errors="replace") or "none: the process did not react to the signal"


def kept_stacks(run_folder: Path) -> list[str]:
    """Returns the files of stacks of actors that hung, newest first, relative to the run's folder."""
    found = sorted((run_folder / KEPT).glob("*.txt"), key=_written_at, reverse=True)
    return [str(path.relative_to(run_folder)) for path in found]


def prune_kept(run_folder: Path) -> None:
    """Deletes the oldest files of stacks."""
    for old in kept_stacks(run_folder)[KEPT_FILES:]:
        (run_folder / old).unlink(missing_ok=True)


def _written_at(path: Path) -> tuple[int, str]:
    """Returns when a file was written, which is the last part of its name."""
    written = path.stem.rpartition(".")[2]
    return int(written) if written.isdigit() else 0, path.name
