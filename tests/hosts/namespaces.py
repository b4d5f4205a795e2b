"""Processes inside the namespaces of another process.

Consumes the pid of a process that holds namespaces. Produces processes in them, whose signals reach them although their
process ids may be others inside.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

CHILD_SECONDS = 10.0


class NoHostsError(Exception):
    """This machine cannot make hosts, or not such ones; the message says why."""


class Inside(subprocess.Popen[str]):
    """A process inside namespaces, and the one of this machine that started it there; they end together."""

    def send_signal(self, sig: int) -> None:
        """Sends the signal to the process inside."""
        if (found := inner(self)) is not None:
            found.send_signal(sig)


@dataclass(frozen=True)
class Room:
    """Namespaces that a process holds.

    kinds: of namespaces, in the words of nsenter's options.
    in_user_namespace: whether they belong to a user namespace, which is then entered too.
    """

    holder: int
    kinds: tuple[str, ...]
    in_user_namespace: bool

    def start(self, argv: Sequence[str], **options: Any) -> Inside:
        """Starts a process in the namespaces, in the current folder; Ctrl-C does not reach it."""
        user = ["--user", "--preserve-credentials"] if self.in_user_namespace else []
        kinds = [f"--{kind}" for kind in self.kinds]
        command = ["nsenter", f"--target={self.holder}", *kinds, *user, "env", f"--chdir={Path.cwd()}", *argv]
        return Inside(command, text=True, start_new_session=True, **options)

    def call(self, *argv: str) -> str:
        """Runs a command in the namespaces and returns its output; raises `NoHostsError` if it fails."""
        done = self.start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, said = done.communicate()
        if done.returncode:
            raise NoHostsError(f"{' '.join(argv)}: {said.strip()}")
        return output


def inner(outer: subprocess.Popen[str]) -> psutil.Process | None:
    """Returns the child that a process has started in new namespaces; None if it has ended."""
    deadline = time.monotonic() + CHILD_SECONDS
    while outer.poll() is None and time.monotonic() < deadline:
        try:
            if found := psutil.Process(outer.pid).children():
                return found[0]
        except psutil.NoSuchProcess:
            return None
        time.sleep(0.005)
    return None
