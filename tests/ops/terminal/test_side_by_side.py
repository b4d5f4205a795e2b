"""Runs side by side: as many drivers as there are places, new goals after each end, and failures that name the log."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from flows.members.driving import goals_of
from flows.run import lending
from flows.run.home import Home
from flows.run.shared_cluster import SharedCluster, taken_cluster
from ops.terminal import side_by_side
from ops.terminal.side_by_side import Clusters, SideBySide
from yatt_core.errors import InfrastructureError


class Drivers:
    """Stands in for drivers: processes that end at once, whose runs reach what the test says."""

    def __init__(self, ledger: Ledger, reach: Callable[[str, int], int], code: int = 0) -> None:
        self._ledger = ledger
        self._reach = reach
        self._code = code
        self.started: list[tuple[str, int | None, str | None]] = []
        self.clusters: list[str | None] = []

    def start(
        self,
        home: Home,
        run: str,
        log: Any,
        accept_drift: bool,
        until: int,
        devices: str | None,
        identity: Any,
        cluster: SharedCluster | None,
    ) -> subprocess.Popen[bytes]:
        self.started.append((run, until, devices))
        self.clusters.append(None if cluster is None else cluster.folder.name)
        fence = self._ledger.leases.acquire(run, this_process(f"yatt driver of {run}"), 60)
        row = self._ledger.runs.find(run)
        for iteration in range(row.iteration + 1, self._reach(run, until) + 1):
            commit(self._ledger, fence, iteration)
        take_checkpoint(self._ledger, fence, self._ledger.runs.find(run).iteration)
        self._ledger.leases.release(fence)
        return subprocess.Popen(["sh", "-c", f"exit {self._code}"])


def commit(ledger: Ledger, fence: Any, iteration: int) -> None:
    from db.write.commit import IterationCommit

    ledger.commits.commit(fence, IterationCommit(0, iteration, {}, 1))


def take_checkpoint(ledger: Ledger, fence: Any, iteration: int) -> None:
    from db.write.records import CheckpointRow

    ledger.records.checkpoint(
        fence, CheckpointRow(fence.run, 0, iteration, fence.term, f"c{iteration}", "", 1, "", 0.0)
    )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "runs").mkdir()
    return Home(tmp_path / "runs")


@pytest.fixture
def ledger(home: Home) -> Any:
    with Ledger.open(home.ledger) as opened:
        for _ in range(3):
            opened.runs.create("side", {"name": "side"}, "digest", 10)
        yield opened


RUNS = ("side-1", "side-2", "side-3")


def test_each_run_is_driven_once_to_its_goal(home: Home, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = Drivers(ledger, lambda run, until: until)
    monkeypatch.setattr(side_by_side, "start_driver_process", drivers.start)
    with Clusters(home) as clusters:
        SideBySide(home, ledger, ["0", "1"], clusters)(goals_of(ledger, RUNS, 2))
    assert sorted(drivers.started[:2]) == [("side-1", 2, "0"), ("side-2", 2, "1")] and drivers.started[2][0] == "side-3"
    assert [ledger.runs.find(run).iteration for run in RUNS] == [2, 2, 2]
    ends = [str(name).rpartition("-")[2] for name in drivers.clusters]
    assert sorted(ends[:2]) == ["0", "1"] and ends[2] in ("0", "1"), "one for each place, used again"
    assert not any(entry.is_dir() for entry in home.clusters.iterdir())


def test_a_place_with_all_gpus_borrows_a_warm_head(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_cluster(home) as warm:

        @contextmanager
        def borrowed(home: Home) -> Iterator[SharedCluster]:
            yield warm

        monkeypatch.setattr(lending, "borrowed_for_command", borrowed)
        with Clusters(home) as clusters:
            assert clusters.at(0, None) is warm
            assert clusters.at(0, None) is warm
            assert clusters.at(0, "0") is not warm, "a warm head sees all GPUs"
        assert warm.folder.exists(), "its owner has it"


def test_who_lends_a_warm_head_hears_that_the_command_was_interrupted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[str]()

    @contextmanager
    def borrowed(home: Home) -> Iterator[SharedCluster]:
        try:
            with taken_cluster(home) as warm:
                yield warm
        except BaseException as error:
            heard.append(type(error).__name__)
            raise

    monkeypatch.setattr(lending, "borrowed_for_command", borrowed)
    with pytest.raises(KeyboardInterrupt), Clusters(home) as clusters:
        clusters.at(0, None)
        raise KeyboardInterrupt
    assert heard == ["KeyboardInterrupt"]


def test_runs_on_a_cluster_that_exists_already_share_no_other(
    home: Home, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YATT_RAY_ADDRESS", "10.0.0.1:6379")
    drivers = Drivers(ledger, lambda run, until: until)
    monkeypatch.setattr(side_by_side, "start_driver_process", drivers.start)
    with Clusters(home) as clusters:
        SideBySide(home, ledger, [None], clusters)(goals_of(ledger, RUNS, 2))
    assert drivers.clusters == [None, None, None] and not home.clusters.exists()


def test_goals_that_arise_from_what_was_reached_are_driven_too(
    home: Home, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers = Drivers(ledger, lambda run, until: until)
    monkeypatch.setattr(side_by_side, "start_driver_process", drivers.start)

    def goals() -> Mapping[str, int]:
        first = ledger.runs.find("side-1").iteration
        return {"side-1": 1} if first < 1 else {run: 4 for run in RUNS if ledger.runs.find(run).iteration < 4}

    with Clusters(home) as clusters:
        SideBySide(home, ledger, [None], clusters)(goals)
    assert drivers.started == [("side-1", 1, None), *((run, 4, None) for run in RUNS)]


def test_a_run_that_ends_too_early_is_named_with_its_log_and_no_other_is_started(
    home: Home, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers = Drivers(ledger, lambda run, until: 1, code=1)
    monkeypatch.setattr(side_by_side, "start_driver_process", drivers.start)
    early = r"side-1 is created at iteration 1 of 2.*exit code 1.*detached\.log"
    with pytest.raises(InfrastructureError, match=early), Clusters(home) as clusters:
        SideBySide(home, ledger, [None], clusters)(goals_of(ledger, RUNS, 2))
    assert [run for run, _, _ in drivers.started] == ["side-1"]


def test_a_driver_that_failed_is_forgiven_if_its_run_is_no_goal_any_longer(
    home: Home, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers = Drivers(ledger, lambda run, until: 0 if run == "side-1" else until, code=4)
    monkeypatch.setattr(side_by_side, "start_driver_process", drivers.start)

    def goals() -> Mapping[str, int]:
        failed = ledger.runs.find("side-1").iteration == 0
        return {run: 2 for run in RUNS if ledger.runs.find(run).iteration < 2 and not (failed and run == "side-1")}

    with Clusters(home) as clusters:
        SideBySide(home, ledger, [None], clusters)(goals)
    assert [run for run, _, _ in drivers.started] == list(RUNS)
