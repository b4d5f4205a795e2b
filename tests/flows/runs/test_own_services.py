"""`yatt train` on a bare machine: its own Ray and Prefect outlive a killed driver, but not a finished run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.run.home import Home
from tests.services import ROOT
from yatt_core.supervisor.client import current_state
from yatt_core.supervisor.process import session_members
from yatt_core.supervisor.state import SupervisorFiles

SPEC = ROOT / "tests" / "specs" / "virtual.yaml"
SECONDS = 150
OWN = ("YATT_RAY_ADDRESS", "PREFECT_API_URL", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


def yatt(home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key not in OWN}
    command = [sys.executable, "-m", "ops.cli.main", "--home", str(home), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.verify
def test_a_killed_driver_finds_its_cluster_and_a_finished_run_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "runs"
    first = yatt(home, "train", str(SPEC), "--set", "rollout.engine.base_seconds=0.05")
    wait_for_commit(home, "virtual-1", 2)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    folder = Home(home).run_folder("virtual-1")
    before = current_state(folder)
    assert before is not None, "the supervisor outlives the driver"

    second = yatt(home, "resume", "latest", "-o", "json")
    wait_for_commit(home, "virtual-1", 5)
    during = current_state(folder)
    assert during is not None
    assert during.identity == before.identity
    assert during.service("ray").identity == before.service("ray").identity
    assert during.service("prefect").identity == before.service("prefect").identity
    output, errors = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, errors
    assert "Traceback" not in errors

    figures = json.loads(output.strip().splitlines()[-1])
    assert (figures["run"], figures["state"], figures["iteration"]) == ("virtual-1", "completed", 8)
    assert 0 < figures["flow_bytes_per_sample"] <= 1024
    assert session_members([], SupervisorFiles.of(folder).mark) == [], "no process remains"

    again = yatt(home, "resume", "virtual-1", "-o", "json")
    output, _ = again.communicate(timeout=SECONDS)
    repeated = json.loads(output.strip().splitlines()[-1])
    digests = ("weights_digest", "experience_digest", "metrics_digest")
    assert [repeated[key] for key in digests] == [figures[key] for key in digests], "a finished run is left alone"


def wait_for_commit(home: Path, run: str, iteration: int) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if (home / "ledger.db").exists():
            with Ledger.open(Home(home).ledger) as ledger:
                if ledger.runs.list() and ledger.runs.find(run).iteration >= iteration:
                    return
        time.sleep(0.05)
    raise AssertionError(f"{run} did not commit iteration {iteration}")
