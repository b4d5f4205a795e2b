"""`yatt train` next to a service group: its flow runs are in the group's Prefect, which may die while the run goes on."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.run.home import Home
from tests.flows.runs.test_killed_starts import exists, results
from tests.flows.runs.test_own_services import SPEC, wait_for_commit, yatt
from tests.flows.tools import same_result
from tests.ops.group.group_tools import ANY, RealGroup
from tests.waiting import wait_until
from yatt_core.supervisor.client import current_state

SECONDS = 400.0
SLOW = ("--set", "rollout.engine.base_seconds=0.3", "--set", "iterations=12")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RealGroup]:
    group = RealGroup(Home(tmp_path / "runs"), {"PREFECT_WORKER_QUERY_SECONDS": "1"})
    yield group
    group.close()


def flow_runs(told: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Returns the flow runs of the flow `train` with this name on the group's server."""
    (prefect,) = [member for member in told["members"] if member["name"] == "prefect"]
    password = base64.b64encode(Path(told["password_file"]).read_text().strip().encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {password}"}
    token = urllib.request.Request(f"{prefect['address']}/api/csrf-token?client=tests", headers=headers)
    with urllib.request.urlopen(token, timeout=60) as answer:
        headers |= {"Prefect-Csrf-Token": json.load(answer)["token"], "Prefect-Csrf-Client": "tests"}
    query = json.dumps({"flows": {"name": {"any_": ["train"]}}, "flow_runs": {"name": {"any_": [name]}}}).encode()
    asked = urllib.request.Request(f"{prefect['address']}/api/flow_runs/filter", query, headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def trained(home: Path, run: str) -> subprocess.Popen[str]:
    """Starts `yatt train`, and returns its process once the first iteration is committed."""
    process = yatt(home, "train", str(SPEC), *SLOW)
    wait_until(lambda: (home / "ledger.db").exists() and exists(home, run), SECONDS)
    wait_for_commit(home, run, 1)
    return process


def ended(process: subprocess.Popen[str]) -> str:
    """Waits for a driver that must succeed; returns what it wrote for people."""
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0 and "Traceback" not in errors, errors
    return errors


@pytest.mark.verify
@pytest.mark.timeout(1800)
def test_runs_use_the_groups_prefect_server_and_outlive_it(group: RealGroup) -> None:
    home = group.home.folder
    told = group.call("up", "--detach", *ANY)
    first = trained(home, "virtual-1")
    (flow_run,) = flow_runs(told, "virtual-1")
    assert flow_run["state"]["type"] == "RUNNING"
    state = current_state(Home(home).run_folder("virtual-1"))
    assert state is not None and set(state.services) == {"ray"}, "the run starts no Prefect server of its own"
    (prefect,) = [member["pid"] for member in told["members"] if member["name"] == "prefect"]
    os.kill(prefect, signal.SIGKILL)
    said = ended(first)
    assert "service group" in said
    told = group.await_status(lambda status: status["state"] == "up")
    (flow_run,) = flow_runs(told, "virtual-1")
    assert flow_run["state"]["type"] in ("RUNNING", "COMPLETED"), "the server has kept the flow run"

    second = trained(home, "virtual-2")
    group.call("down")
    ended(second)
    third = trained(home, "virtual-3")
    state = current_state(Home(home).run_folder("virtual-3"))
    assert state is not None and set(state.services) == {"ray", "prefect"}, "a group that was stopped is not used"
    ended(third)
    assert same_result(results(home, "virtual-1"), results(home, "virtual-3"))
    assert same_result(results(home, "virtual-2"), results(home, "virtual-3"))
