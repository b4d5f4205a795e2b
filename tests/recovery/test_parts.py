"""Parts that die and return: each of them is killed once, and the run ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.flows.runs.test_exact import check_each_point_once
from tests.flows.tools import Driver
from tests.recovery.chaos import AHEAD, SPEC, chaos
from tests.recovery.conftest import Bed
from tests.recovery.strikes import PLAN, RECOVER, WARM, Strike, ahead, schedule
from tests.services import ROOT
from yatt_core.spec import load_spec
from yatt_core.supervisor.runner import free_port

START_SECONDS = 120.0
VIRTUAL = (
    "iterations=100000", "evaluation.every=1", "rollout.engine.base_seconds=0.05", "trainer.engine.fixed_seconds=1.0",
    "recovery.lease_seconds=2",
)  # fmt: skip
STRIKES = (
    Strike("controller", "collect"),
    Strike("engine", "collect"),
    Strike("trainer", "learn"),
    Strike("supervisor", "collect"),
    Strike("raylet", "collect"),
    Strike("prefect", "collect"),
    Strike("database", "collect"),
)


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_each_part_of_a_run_may_die(tmp_path: Path) -> None:
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", VIRTUAL)
    told = chaos(tmp_path, spec, list(STRIKES), seed=0, seconds=400)
    check(told, STRIKES)


WARM_STRIKES = (
    Strike("owner", "collect"),
    Strike("driver", "learn"),
    Strike("raylet", "collect"),
    Strike("supervisor", "collect"),
    Strike("cold", "collect"),
)


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_each_part_of_a_run_on_a_warm_head_may_die(tmp_path: Path) -> None:
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", VIRTUAL)
    told = chaos(tmp_path, spec, list(WARM_STRIKES), seed=0, seconds=400, warm=True)
    check(told, WARM_STRIKES)


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_the_prefect_server_may_be_down_for_two_minutes(tmp_path: Path) -> None:
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", VIRTUAL)
    strikes = [Strike("prefect", "collect")]
    check(chaos(tmp_path, spec, strikes, seed=0, seconds=600, prefect_seconds=120), strikes)


@pytest.mark.verify
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("spec", "plan"), [(SPEC, PLAN), (AHEAD, ahead(PLAN))], ids=["in turn", "with a lag and slices"]
)
def test_chaos_of_every_kind(tmp_path: Path, spec: Path, plan: Mapping[str, Mapping[str, int]]) -> None:
    """A short `make chaos` loses and repeats nothing."""
    strikes = schedule(1, 14, plan)
    check(chaos(tmp_path, load_spec(spec, ()), strikes, seed=1, seconds=1200), strikes)


def check(told: dict[str, Any], strikes: Sequence[Strike]) -> None:
    assert set(told["faults_by_kind"]) >= {strike.kind for strike in strikes}, told
    assert (told["lost_iterations"], told["duplicate_iterations"], told["regenerated_shards"]) == (0, 0, 0), told
    assert told["digests_equal"] and told["audit_chain_sound"] and not told["stuck"], told


def test_a_seed_gives_one_schedule_with_the_counts_of_the_plan() -> None:
    strikes = schedule(seed=3, faults=210)
    assert strikes == schedule(seed=3, faults=210) != schedule(seed=4, faults=210)
    assert len(strikes) == sum(sum(phases.values()) for phases in PLAN.values()) == 210
    for phase in ("collect", "prepare", "learn", "sync", "checkpoint", "commit"):
        assert sum(strike.phase == phase for strike in strikes) >= 10, phase
    usual = [strike.kind for strike in strikes if strike.phase != RECOVER]
    least = {
        "trainer": 30,
        "driver": 30,
        "pause": 10,
        "cold": 10,
        "raylet": 5,
        "prefect": 5,
        "database": 10,
        "supervisor": 5,
        "fork_server": 3,
    }
    assert all(usual.count(kind) >= count for kind, count in least.items())
    assert usual.count("controller") + usual.count("engine") >= 80 and len(strikes) - len(usual) >= 20
    assert {strike.kind for strike in schedule(seed=0, faults=len(PLAN))} == set(PLAN)
    assert {strike.kind for strike in schedule(seed=0, faults=len(WARM), plan=WARM)} == set(WARM)


class MlflowServer:
    """MLflow's own server on a fixed port, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        store = ["--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}"]
        served = ["--artifacts-destination", str(self._folder / "served"), "--workers", "1"]
        where = ["--host", "127.0.0.1", "--port", self.address.rpartition(":")[2]]
        with (self._folder / "mlflow.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *store, *served, *where],
                cwd=self._folder, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )  # fmt: skip

    def await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                assert time.monotonic() < deadline, (self._folder / "mlflow.log").read_text()
                time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_the_tracking_server_may_be_down_during_a_run(
    tmp_path: Path, bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is down during the whole run: rows wait in the ledger, and the next resume sends them."""
    server = MlflowServer(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    driver = Driver(tmp_path / "runs", bed.nursery, {"MLFLOW_TRACKING_URI": server.address})
    run = driver.create("virtual.yaml")
    driver.drive(run)
    with driver.ledger() as ledger:
        assert ledger.runs.find(run).state == "completed"
        waiting, _ = ledger.outbox.counts(run)
    assert waiting > 8, "nothing was delivered, nothing is lost"
    server.start()
    try:
        server.await_answer()
        driver.drive(run)
        check_each_point_once(driver, run)
        with driver.ledger() as ledger:
            assert ledger.outbox.counts(run)[0] == 0
    finally:
        server.stop()
