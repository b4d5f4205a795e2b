"""Warm Ray heads of the service group: lent to one run at a time, given back or kept, and their owner may die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.prefect_io import prefect_server
from flows.run.home import Home
from flows.run.lending import free_cluster
from flows.run.shared_cluster import clear_abandoned, noted_folder
from tests.flows.runs.test_killed_starts import exists
from tests.flows.runs.test_own_services import SPEC, wait_for_commit
from tests.services import ROOT
from tests.supervisor.support import supervised
from tests.waiting import wait_until
from yatt_core.supervisor.client import current_state, ensure_supervisor, stop_supervisor, wait_ready
from yatt_core.supervisor.services import ServiceState

SECONDS = 300.0
SLOW = ("--set", "rollout.engine.base_seconds=0.1")
OWN = ("YATT_RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
RESULTS = ("weights_digest", "experience_digest", "metrics_digest")


class Bed:
    """A home with a Prefect server and an owner of clusters."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "runs")
        self.home.group.mkdir(parents=True)
        self._prefect = folder / "prefect"
        (self._prefect / "logs").mkdir(parents=True)
        ensure_supervisor(self._prefect, [prefect_server.server_service(self._prefect, folder / "starts")], SECONDS)
        state = wait_ready(self._prefect, [prefect_server.NAME], SECONDS)
        kept = {name: value for name, value in os.environ.items() if name not in OWN}
        self.environment = kept | {
            "PREFECT_API_URL": f"http://{state.service(prefect_server.NAME).address}/api",
            "PYTHONPATH": str(ROOT),
            "YATT_HOME": str(self.home.folder),
        }
        self._begun: list[subprocess.Popen[str]] = []
        self.owner = self.begin("ops.group.clusters")

    def begin(self, module: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=ROOT,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._begun.append(process)
        return process

    def yatt(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return self.begin("ops.cli.main", *words, "-o", "json", **environment)

    def warm(self) -> Path:
        """Returns the folder of a free cluster, once its head is up."""
        wait_until(lambda: free_cluster(self.home) is not None and self.is_ready(), SECONDS)
        reply = free_cluster(self.home)
        assert reply is not None
        return Path(reply.folder)

    def is_ready(self) -> bool:
        reply = free_cluster(self.home)
        state = None if reply is None else current_state(Path(reply.folder))
        return state is not None and state.service("ray").state is ServiceState.READY

    def close(self) -> None:
        for process in self._begun:
            process.kill()
            process.communicate()
        clear_abandoned(self.home)
        stop_supervisor(self._prefect)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.close()


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    told: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return told


def pid_of_head(folder: Path) -> int:
    state = current_state(folder)
    assert state is not None
    identity = state.service("ray").identity
    assert identity is not None
    return identity.pid


def workers_of(head: int) -> set[int]:
    """Returns the processes of a head's workers; Ray's own agents have such names too."""
    found = set()
    for process in psutil.Process(head).children(recursive=True):
        with suppress(psutil.Error):
            name = "".join(process.cmdline()[:1])
            if name.startswith("ray::") and not name.endswith("Agent"):
                found.add(process.pid)
    return found


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_runs_take_over_a_warm_head_which_may_be_killed_like_its_owner(bed: Bed) -> None:
    folder = bed.warm()
    head = pid_of_head(folder)

    first = bed.yatt("train", str(SPEC), *SLOW)
    wait_until(lambda: (bed.home.folder / "ledger.db").exists() and exists(bed.home.folder, "virtual-1"), SECONDS)
    wait_for_commit(bed.home.folder, "virtual-1", 1)
    assert noted_folder(bed.home.run_folder("virtual-1")) == folder
    assert free_cluster(bed.home) is None, "a head is lent to one run at a time"
    of_first = workers_of(head)
    assert of_first
    undisturbed = result_of(first)
    assert not bed.home.run_folder("virtual-1").joinpath("supervisor", "ray").exists()

    assert bed.warm() == folder and pid_of_head(folder) == head, "the next run takes over the same head"
    second = bed.yatt("train", str(SPEC), *SLOW)
    wait_until(lambda: exists(bed.home.folder, "virtual-2"), SECONDS)
    wait_for_commit(bed.home.folder, "virtual-2", 1)
    assert not workers_of(head) & of_first, "no process has served two runs"
    os.kill(head, signal.SIGKILL)
    wait_for_commit(bed.home.folder, "virtual-2", 2)
    bed.owner.kill()
    bed.owner.communicate()
    assert [result_of(second)[key] for key in RESULTS] == [undisturbed[key] for key in RESULTS]
    assert not supervised(folder), "the last one that holds a cluster ends it"
