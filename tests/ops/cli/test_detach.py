"""`--detach`: a driver in a process of its own session, started once and reported when it holds the run or has failed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.lease import KEEPER
from ops import driver_process
from ops.terminal.detached import LOG, start_detached
from tests.ops.conftest import Yatt
from tests.ops.seeding import toy_spec
from tests.services import ROOT
from tests.waiting import wait_until

HOLDS = """#!{python}
import sys, time
from db.core.holder import this_process
from db.ledger import Ledger
run = sys.argv[-1]
with Ledger.open({ledger!r}) as ledger:
    own = ledger.leases.acquire(run, this_process("yatt resume --set of " + run), 60)
    time.sleep(0.5)
    ledger.leases.release(own)
    ledger.leases.acquire(run, this_process("yatt driver of " + run), 60)
print("driving", *sys.argv[1:], flush=True)
time.sleep(600)
"""
FAILS = """#!{python}
import sys
print("error: the model folder is missing")
sys.exit(2)
"""


@pytest.fixture
def run(home: Home) -> str:
    return create_run(home, toy_spec())


def pretend(script: str, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the program that is started by a script."""
    path = tmp_path / "program"
    path.write_text(script.format(python=sys.executable, ledger=home.ledger))
    path.chmod(0o755)
    monkeypatch.setattr(driver_process.sys, "executable", str(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_it_returns_once_the_driver_holds_the_lease(
    yatt: Yatt, home: Home, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease that a command holds for a moment, by the same process, is not the driver's."""
    pretend(HOLDS, home, tmp_path, monkeypatch)
    answer = yatt("resume", run, "--detach", "--accept-drift", "-o", "json")
    started = answer.document
    try:
        assert answer.code == 0 and started["exit_code"] is None
        assert os.getsid(started["pid"]) == started["pid"], "it has a session of its own"
        with Ledger.open(home.ledger) as ledger:
            assert ledger.leases.holders()[run].text.startswith("yatt driver of")
        assert started["log"] == str(home.run_folder(run) / LOG)
        wait_until(lambda: f"resume --accept-drift -- {run}" in Path(started["log"]).read_text(), 30)
        assert f"yatt watch {run}" in started["follow"]
        again = yatt("resume", run, "--detach")
        assert again.code == 3 and f"yatt stop {run}" in again.err
    finally:
        os.kill(started["pid"], signal.SIGKILL)
        os.waitpid(started["pid"], 0)


def test_a_driver_that_fails_before_is_reported_with_its_code_and_words(
    yatt: Yatt, home: Home, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.run_folder(run) / LOG).write_text("an earlier start\n")
    pretend(FAILS, home, tmp_path, monkeypatch)
    answer = yatt("resume", run, "--detach")
    assert answer.code == 2 and "model folder is missing" in answer.err and "earlier" not in answer.err
    assert yatt("resume", run, "--detach", "-o", "json").document["exit_code"] == 2


def test_a_run_that_the_keeper_holds_and_whose_folder_is_gone_is_started(
    yatt: Yatt, home: Home, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper releases its lease soon, and the object store may hold the folder's contents."""
    pretend(FAILS, home, tmp_path, monkeypatch)
    shutil.rmtree(home.run_folder(run))
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(run, this_process(KEEPER), 60)
    answer = yatt("resume", run, "--detach")
    assert answer.code == 2 and "model folder is missing" in answer.err
    assert (home.run_folder(run) / LOG).exists()


def test_the_real_program_is_started(home: Home, run: str) -> None:
    with Ledger.open(home.ledger) as ledger:
        ledger.deletions.delete(ledger.leases.acquire(run, this_process("rm"), 60), "ann", "", {})
        started = start_detached(home, ledger, run, accept_drift=False)
    assert started.exit_code == 2 and "was deleted by ann" in started.said


@pytest.mark.verify
def test_a_detached_run_is_driven_watched_and_stopped(yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = str(ROOT / "tests" / "specs" / "virtual.yaml")
    started = yatt("train", spec, "--set", "iterations=100000", "--detach", "-o", "json").document
    run = started["run"]
    try:
        assert started["exit_code"] is None
        with Ledger.open(home.ledger) as ledger:
            wait_until(lambda: ledger.runs.find(run).iteration >= 1, 120)
        assert yatt("stop", run, "--wait").code == 0
        watched = yatt("watch", run)
        assert watched.code == 0 and "stopped" in watched.out
        _, status = os.waitpid(started["pid"], 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert "is stopped" in Path(started["log"]).read_text()
    except BaseException:
        os.kill(started["pid"], signal.SIGKILL)
        raise
