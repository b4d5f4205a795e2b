"""Runs driven from Python, by real drivers on shared services: to the end, in the background, stopped, resumed, forked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import yatt
from tests.services import ROOT
from tests.waiting import wait_until

VIRTUAL = ROOT / "configs" / "virtual.yaml"
FAST = {"tracking.enabled": False, "rollout.engine.clock_factor": 1e5, "trainer.engine.clock_factor": 1e5}


class Watcher:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.commits: list[yatt.Commit] = []
        self.ends: list[yatt.End] = []

    def on_commit(self, commit: yatt.Commit) -> None:
        self.commits.append(commit)

    def on_end(self, end: yatt.End) -> None:
        self.ends.append(end)


@pytest.fixture
def place(tmp_path: Path, service_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a home whose drivers use the shared services, and ends those that a failed test leaves."""
    for name, value in service_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("YATT_HOME", str(tmp_path / "runs"))
    yield tmp_path / "runs"
    for run in yatt.runs(tmp_path / "runs") if (tmp_path / "runs").exists() else ():
        if run.state.driver == "driven":
            os.kill(_driver_of(run), signal.SIGKILL)


def test_a_run_is_trained_and_followed(place: Path) -> None:
    watcher = Watcher()
    run = yatt.train(VIRTUAL, {**FAST, "iterations": 3, "evaluation.every": 3}, callbacks=[watcher], until=2)
    assert run.home.folder == place and run.state.state == "stopped"
    assert [commit.iteration for commit in watcher.commits] == [0, 1, 2]
    assert watcher.commits[2].target == 3 and watcher.commits[2].metrics["reward/mean"] == pytest.approx(
        run.state.reward
    )
    assert [end.state for end in watcher.ends] == ["stopped"]
    assert run.samples().num_rows == 32 and run.checkpoints()[0].iteration == 2


def test_a_spec_that_cannot_run_creates_no_run(place: Path) -> None:
    with pytest.raises(yatt.errors.ConfigurationError, match=r"callbacks\.0\.function"):
        yatt.train(VIRTUAL, {**FAST, "callbacks": [{"function": "tests.api.nothing:Here"}]})
    assert not place.exists()


class Failing:
    """A callback of a spec that writes what it is told, and fails at one iteration."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def on_commit(self, commit: yatt.Commit) -> None:
        with self.file.open("a") as stream:
            stream.write(f"{commit.iteration}\n")
        if commit.iteration == 1:
            raise RuntimeError("no space")

    def on_end(self, end: yatt.End) -> None:
        with self.file.open("a") as stream:
            stream.write(f"{end.state}\n")


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_a_callback_of_the_spec_changes_no_result(place: Path, tmp_path: Path) -> None:
    own = [{"function": "tests.api.test_driving:Failing", "options": {"file": str(tmp_path / "told.txt")}}]
    spec = yatt.Spec.load(VIRTUAL, {**FAST, "iterations": 2})
    with_one = yatt.train(spec, {"callbacks": own}).results
    without = yatt.train(spec).results
    assert (tmp_path / "told.txt").read_text().split() == ["0", "1", "2", "completed"]
    for key in ("weights_digest", "experience_digest", "metrics_digest"):
        assert getattr(with_one, key) == getattr(without, key) is not None
    assert yatt.find(with_one.run).audit().sound, "with the event of the failed call"


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_a_detached_run_is_stopped_killed_resumed_and_forked(place: Path) -> None:
    spec = yatt.Spec.load(VIRTUAL, {**FAST, "iterations": 100_000, "checkpoints.every": 2})
    run = yatt.train(spec, detach=True)
    with pytest.raises(TimeoutError):
        run.wait(0.1)
    wait_until(lambda: run.state.iteration >= 2, 300)
    assert run.stop() and run.wait(300).state == "stopped"
    at = run.state.iteration
    yatt.resume(run, detach=True)
    wait_until(lambda: run.state.iteration > at, 300)
    with pytest.raises(yatt.errors.LeaseHeld):
        yatt.resume(run)
    os.kill(_driver_of(run), signal.SIGKILL)
    with pytest.raises(yatt.errors.InfrastructureError, match="disappeared"):
        run.wait(300)
    yatt.resume(run, until=run.state.iteration + 2)
    fork = run.fork(at, {"iterations": at + 2}, name="branch")
    assert fork.id == "branch-1" and yatt.resume(fork).state.state == "completed"
    assert run.rollback(at, "try again").superseded > 0
    again = yatt.resume(run, {"iterations": at + 2})
    assert again.results.weights_digest != fork.results.weights_digest, "a new branch draws other samples"


def _driver_of(run: yatt.Run) -> int:
    from db.ledger import Ledger

    with Ledger.open(run.home.ledger) as ledger:
        return ledger.leases.holders()[run.id].pid
