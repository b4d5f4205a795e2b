"""The real service group of `yatt up` for tests: its commands, its Prefect server, and deployments of small runs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.prefect_io.prefect_server import PASSWORD_VARIABLE
from tests.services import ROOT

SPEC = ROOT / "tests" / "specs" / "virtual.yaml"
SECONDS = 600.0
TERMINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
CLIENT = "tests"


@dataclass
class Group:
    """A running group.

    environment: the environment of its commands, which use the Ray head that tests share.
    """

    home: Path
    environment: Mapping[str, str]
    api: str = ""
    _token: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str, cwd: Path = ROOT) -> str:
        """Runs a command, which must succeed, and returns its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=cwd, env=dict(self.environment), capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def yatt(self, *words: str) -> dict[str, Any]:
        """Runs a `yatt` command and returns its JSON object."""
        answer: dict[str, Any] = json.loads(self.run("ops.cli.main", "--home", str(self.home), *words, "-o", "json"))
        return answer

    def prefect(self, *words: str, cwd: Path = ROOT) -> str:
        """Runs one of Prefect's own commands and returns its output."""
        return self.run("prefect", *words, cwd=cwd)

    def up(self) -> None:
        """Starts the group and points its commands at it."""
        ports = ("--prefect-port", "0", "--mlflow-port", "0", "--dashboard-port", "0")
        told = self.yatt("up", "--detach", *ports)
        members = {member["name"]: member for member in told["members"]}
        self.api = f"{members['prefect']['address']}/api"
        password = Path(told["password_file"]).read_text().strip()
        self.environment = {**self.environment, "PREFECT_API_URL": self.api, PASSWORD_VARIABLE: password}

    def member_pid(self, name: str) -> int:
        """Returns the process id of a member."""
        status = subprocess.run(
            [sys.executable, "-m", "ops.cli.main", "--home", str(self.home), "status", "-o", "json"],
            cwd=ROOT, env=dict(self.environment), capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        (pid,) = [member["pid"] for member in json.loads(status.stdout)["members"] if member["name"] == name]
        return int(pid)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Returns the answer of Prefect's server to a POST with a body, or to a GET without one."""
        password = base64.b64encode(self.environment[PASSWORD_VARIABLE].encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {password}"}
        if body is not None:
            headers |= self._token or self._new_token()
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.api + path, data, headers), timeout=60) as answer:
            return json.load(answer)

    def _new_token(self) -> dict[str, str]:
        token = self.ask(f"/csrf-token?client={CLIENT}")["token"]
        self._token = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": CLIENT}
        return self._token

    def flow_runs(self, deployment: str) -> list[dict[str, Any]]:
        """Returns the due flow runs of a deployment, oldest first."""
        query = {"deployments": {"name": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found: list[dict[str, Any]] = self.ask("/flow_runs/filter", query)
        return [flow_run for flow_run in found if flow_run["state_name"] != "Scheduled"]

    def start_by_hand(self, deployment: str) -> str:
        """Starts a window as an operator would, and returns the flow run's id."""
        said = self.prefect("deployment", "run", f"yatt/{deployment}")
        words = said.replace("│", " ").split()
        return next(word for word in words if len(word) == 36 and word.count("-") == 4)

    def ending(self, flow_run: str) -> tuple[str, str]:
        """Waits for a flow run to end; returns its final state's name and message."""
        found = self.await_true(
            f"the end of flow run {flow_run}",
            lambda: (state := self.ask(f"/flow_runs/{flow_run}")["state"])["type"] in TERMINAL and state,
        )
        return found["name"], found["message"]

    def await_true(self, what: str, look: Callable[[], Any]) -> Any:
        """Calls `look` until it returns something true, and returns that; `what` names it in the error."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(0.2)
        raise AssertionError(f"waited in vain for {what}")


def group_environment(services: Mapping[str, str]) -> dict[str, str]:
    """Returns the tests' environment with the services' Ray but not their Prefect server: the group has its own."""
    ray = {name: value for name, value in services.items() if name != "PREFECT_API_URL"}
    return {**os.environ, **ray}


@contextmanager
def running_group(home: Path, services: Mapping[str, str]) -> Iterator[Group]:
    """Starts a group and ends it afterwards."""
    group = Group(home, group_environment(services))
    group.up()
    try:
        yield group
    finally:
        group.run("ops.cli.main", "--home", str(home), "down")
