"""A real service group for a test: started like an operator's, and removed with the test whatever happens to it."""

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
from flows.run.shared_cluster import clear_abandoned
from tests.services import ROOT
from yatt_core.supervisor.client import stop_supervisor
from yatt_core.supervisor.process import session_members
from yatt_core.supervisor.state import SupervisorFiles

SECONDS = 900.0
ANY = ("--prefect-port", "0", "--mlflow-port", "0", "--dashboard-port", "0")


class RealGroup:
    """Calls `yatt up`, `yatt down` and `yatt status` on one home, each as a separate process."""

    def __init__(self, home: Home, environment: Mapping[str, str]) -> None:
        self.home = home
        self._environment = {**os.environ, **environment, "YATT_HOME": str(home.folder), "PYTHONPATH": str(ROOT)}
        self._started: list[subprocess.Popen[str]] = []

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command that runs in parallel with the test."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.cli.main", *words],
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def begin_in_terminal(self, *words: str) -> int:
        """Runs a command from a shell in a new terminal; returns its controlling end, which closes the terminal."""
        near, far = pty.openpty()
        # The terminal controls the shell, so that the shell and its job receive its hang-up, even under nohup.
        shell = ["env", "--default-signal=HUP", "setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"]
        process = subprocess.Popen(shell, env=self._environment, stdin=far, stdout=far, stderr=far, text=True)
        self._started.append(process)
        os.close(far)
        os.write(near, f"{shlex.join([sys.executable, '-m', 'ops.cli.main', *words])}\n".encode())
        return near

    def call(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Returns the JSON object that a command prints; its exit code must be `code`."""
        process = self.begin(*words, "-o", "json")
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == code, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    def await_status(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Returns the first status that fulfils a condition."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            process = self.begin("status", "-o", "json")
            found: dict[str, Any] = json.loads(process.communicate(timeout=SECONDS)[0])
            if condition(found):
                return found
        raise AssertionError(f"the group did not reach that state; last:  {found}")

    def processes(self) -> int:
        """Counts the group's processes."""
        return len(session_members([], SupervisorFiles.of(self.home.group).mark))

    def close(self) -> None:
        """Ends all processes."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        stop_supervisor(self.home.group, 0.0)
        clear_abandoned(self.home)


def kill(pid: int) -> None:
    """Kills a process as the kernel does when memory runs out."""
    os.kill(pid, signal.SIGKILL)


def answers(address: str) -> bool:
    """Returns True if an HTTP server answers a plain request."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def listening(home: Home) -> list[tuple[str, str]]:
    """Returns (process, address) of every TCP socket that a process of the group listens on."""
    import psutil

    found = []
    for member in session_members([], SupervisorFiles.of(home.group).mark):
        process = psutil.Process(member.pid)
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.append((" ".join(process.cmdline()[:5]), connection.laddr.ip))
    return found


def wait_for(path: Path, text: str) -> None:
    """Waits until a file contains the text."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} does not contain {text!r}")
