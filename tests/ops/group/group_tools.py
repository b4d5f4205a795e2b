"""A real service group for a test: started as an operator starts it, and gone with the test whatever happens to it."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flows.run.home import Home
from tests.services import ROOT
from yatt_core.supervisor.client import stop_supervisor
from yatt_core.supervisor.process import session_members
from yatt_core.supervisor.state import SupervisorFiles

SECONDS = 900.0
ANY = ("--prefect-port", "0", "--mlflow-port", "0", "--dashboard-port", "0")


class RealGroup:
    """Calls `yatt up`, `yatt down` and `yatt status` on one home, each in a process of its own."""

    def __init__(self, home: Home, environment: Mapping[str, str]) -> None:
        self.home = home
        self._environment = {**os.environ, **environment, "YATT_HOME": str(home.folder), "PYTHONPATH": str(ROOT)}
        self._started: list[subprocess.Popen[str]] = []

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on beside the test."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.cli.main", *words],
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def begin_in_terminal(self, *words: str) -> int:
        """A command that a shell runs in a terminal of its own; returns the terminal's other side, which closes it."""
        near, far = pty.openpty()
        # The shell gets the terminal as its controlling one, so that it and its job hear of the end; also under nohup.
        shell = ["env", "--default-signal=HUP", "setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"]
        process = subprocess.Popen(shell, env=self._environment, stdin=far, stdout=far, stderr=far, text=True)
        self._started.append(process)
        os.close(far)
        os.write(near, f"{shlex.join([sys.executable, '-m', 'ops.cli.main', *words])}\n".encode())
        return near

    def call(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The JSON object that a command answers with; it has to end with this code."""
        process = self.begin(*words, "-o", "json")
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == code, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    def await_status(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status that fulfils a condition."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            process = self.begin("status", "-o", "json")
            found: dict[str, Any] = json.loads(process.communicate(timeout=SECONDS)[0])
            if condition(found):
                return found
        raise AssertionError(f"the group did not come to that; last: {found}")

    def processes(self) -> int:
        """How many processes the group has."""
        return len(session_members([], SupervisorFiles.of(self.home.group).mark))

    def close(self) -> None:
        """Leaves nothing."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        stop_supervisor(self.home.group, 0.0)


def kill(pid: int) -> None:
    """As the kernel would, for want of memory."""
    os.kill(pid, signal.SIGKILL)


def answers(address: str) -> bool:
    """Whether an HTTP server answers a plain request."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def listening(home: Home) -> list[tuple[str, str]]:
    """(process, address) of every TCP socket that a process of the group listens on."""
    import psutil

    found = []
    for member in session_members([], SupervisorFiles.of(home.group).mark):
        process = psutil.Process(member.pid)
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.append((" ".join(process.cmdline()[:5]), connection.laddr.ip))
    return found


def wait_for(path: Path, text: str) -> None:
    """Waits until a file says something."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} does not say {text!r}")
