"""Runs of a sweep, a soup or a pipeline in the queue: its limits hold, and no run gets a second driver, whoever is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.lease import ENDED
from db.write.queueing import REMOVED, Submission
from db.write.records import CheckpointRow
from db.write.scheduling import Scheduling
from flows.members.driving import goals_of
from flows.queueing.pools_file import pools_file
from flows.queueing.scheduler import Scheduler
from flows.run.home import Home
from flows.run.lease import DRIVER
from ops.queueing import child_runs, processes
from ops.queueing.child_runs import ChildRuns, machine_pools
from ops.queueing.processes import DriverProcesses
from ops.terminal.clusters import Clusters
from tests.db.tools import commit_of
from tests.services import ROOT
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.spec import load_spec
from yatt_core.spec.reading.documents import yaml_text

SPEC = load_spec(ROOT / "configs" / "virtual.yaml", ["name=side", "iterations=10"])
RUNS = ("side-1", "side-2", "side-3")


class Killed(BaseException):
    """The command dies here."""


class Drivers:
    """Stands in for drivers: processes whose runs reach what the test says, at once unless they stay until `finish`.

    held: number of runs that held devices at each start.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.reach: Callable[[str, int], int] = lambda run, until: until
        self.stays = False
        self.started: list[tuple[str, int | None, str | None]] = []
        self.clusters: list[str | None] = []
        self.held: list[int] = []
        self._waiting: list[tuple[Fence, int, subprocess.Popen[bytes]]] = []

    def start(
        self, home: Home, run: str, *, until: int, devices: str | None, cluster: Any, **_: Any
    ) -> subprocess.Popen[bytes]:
        self.started.append((run, until, devices))
        self.clusters.append(None if cluster is None else cluster.folder.name)
        self.held.append(len(self._ledger.queue.rows().held))
        fence = self._ledger.leases.acquire(run, this_process(f"{DRIVER}{run}"), 60)
        self._ledger.leases.start_session(fence, "flow", "flow")
        self._ledger.runs.set_state(fence, "running")
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._waiting.append((fence, until, process))
        if not self.stays:
            self.finish()
        return process

    def finish(self) -> None:
        """Lets the drivers that have begun reach what they are to reach, and end."""
        while self._waiting:
            fence, until, process = self._waiting.pop()
            row = self._ledger.runs.find(fence.run)
            last = row.iteration if row.desired_state == "stop" else self.reach(fence.run, until)
            for iteration in range(row.iteration + 1, last + 1):
                self._ledger.commits.commit(fence, commit_of(iteration))
            place = (fence.run, 0, last, fence.term)
            self._ledger.records.checkpoint(fence, CheckpointRow(*place, f"c{last}", "", 1, "", 0.0))
            self._ledger.runs.set_state(fence, "stopped")
            self._ledger.leases.end_session(fence, ENDED)
            self._ledger.leases.release(fence)
            process.communicate()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "runs").mkdir()
    return Home(tmp_path / "runs")


@pytest.fixture
def ledger(home: Home) -> Iterator[Ledger]:
    with Ledger.open(home.ledger) as opened:
        for _ in RUNS:
            opened.runs.create("side", SPEC.model_dump(mode="json"), SPEC.digest, 10)
        yield opened


@pytest.fixture
def drivers(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Drivers:
    made = Drivers(ledger)
    monkeypatch.setattr(processes, "start_driver_process", made.start)
    monkeypatch.setattr(child_runs, "acting_name", lambda: "ann")
    monkeypatch.setattr(child_runs, "local_gpus", list)
    monkeypatch.setattr(child_runs.os, "sched_getaffinity", lambda _: set(range(2 * SPEC.devices)))
    monkeypatch.setattr(child_runs, "POLL_SECONDS", 0.01)
    return made


def drive(home: Home, ledger: Ledger, goals: Any = None, at_once: int | None = None) -> None:
    with Clusters(home) as clusters:
        ChildRuns(home, ledger, clusters, at_once)(goals or goals_of(ledger, RUNS, 2))


def write_pools(home: Home, **pool: Any) -> None:
    pools_file(home).write_text(yaml_text({"pools": {"main": pool}}))


def reached(ledger: Ledger) -> list[int]:
    return [ledger.runs.find(run).iteration for run in RUNS]


def test_each_run_is_driven_once_to_its_goal_and_as_many_at_a_time_as_the_machine_holds(
    home: Home, ledger: Ledger, drivers: Drivers
) -> None:
    drivers.stays = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_runs.time, "sleep", lambda _: drivers.finish())
        drive(home, ledger)
    assert sorted(drivers.started) == [(run, 2, None) for run in RUNS]
    assert reached(ledger) == [2, 2, 2] and drivers.held == [1, 2, 1]
    assert len(set(drivers.clusters[:2])) == 2 and drivers.clusters[2] in drivers.clusters[:2], "one for each place"
    assert not any(entry.is_dir() for entry in home.clusters.iterdir())
    known = ledger.queue.scheduler()
    assert known is not None and known.holder is None, "the command gives the queue's lease back"


def test_a_quota_lets_runs_wait(
    home: Home, ledger: Ledger, drivers: Drivers, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pools(home, devices=9 * SPEC.devices, quotas={"default": SPEC.devices})
    drivers.stays = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_runs.time, "sleep", lambda _: drivers.finish())
        drive(home, ledger)
    assert drivers.held == [1, 1, 1] and reached(ledger) == [2, 2, 2]
    assert "side-2 waits in the queue: " in capsys.readouterr().err


def test_devices_that_another_run_holds_are_waited_for(home: Home, ledger: Ledger, drivers: Drivers) -> None:
    write_pools(home, devices=SPEC.devices)
    (other,) = RUNS[:1]
    drivers.stays = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_runs.time, "sleep", lambda _: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            drive(home, ledger, lambda: {other: 5})
    assert drivers.started == [(other, 5, None)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_runs.time, "sleep", lambda _: drivers.finish())
        drive(home, ledger, goals_of(ledger, RUNS[1:], 2))
    assert drivers.held == [1, 1, 1] and reached(ledger) == [5, 2, 2]


def test_a_run_that_never_fits_is_refused(home: Home, ledger: Ledger, drivers: Drivers) -> None:
    write_pools(home, devices=9, quotas={"default": SPEC.devices - 1})
    with pytest.raises(ConfigurationError, match=rf"need {SPEC.devices} devices each, and ann can have at most"):
        drive(home, ledger)
    assert drivers.started == []


def test_a_command_killed_while_a_run_starts_starts_no_second_driver(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers.stays = True

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Scheduling, "note_driver", killed)
        with pytest.raises(Killed):
            drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    monkeypatch.setattr(child_runs.time, "sleep", lambda _: drivers.finish())
    drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    assert drivers.started == [("side-1", 2, None)] and reached(ledger)[0] == 2


def test_a_command_killed_before_a_driver_starts_is_followed_by_one_that_starts_it(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(DriverProcesses, "start", killed)
        with pytest.raises(Killed):
            drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    assert [row.run for row in ledger.queue.rows().held] == ["side-1"]
    drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    assert drivers.started == [("side-1", 2, None)] and len(ledger.queue.allocations(runs=["side-1"])) == 1


def test_a_run_that_was_left_waiting_for_a_pool_that_is_gone_is_submitted_anew(
    home: Home, ledger: Ledger, drivers: Drivers
) -> None:
    gone = Submission(("machine",), "ann", "default", 0, SPEC.devices, until=2)
    ledger.submissions.submit("side-1", gone, "ann")
    write_pools(home, devices=SPEC.devices)
    drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    assert drivers.started == [("side-1", 2, None)] and reached(ledger)[0] == 2


def test_while_another_scheduler_serves_the_queue_the_command_starts_nothing(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pools(home, devices=9)
    other = Scheduler(home, ledger, DriverProcesses(home))
    other.lead()
    rounds: list[int] = []

    def wait(_: float) -> None:
        rounds.append(len(drivers.started))
        if len(rounds) > 2:
            other.round()

    monkeypatch.setattr(child_runs.time, "sleep", wait)
    drive(home, ledger)
    assert rounds[:3] == [0, 0, 0] and reached(ledger) == [2, 2, 2]
    assert drivers.clusters == [None] * 3, "its drivers have services of their own"
    known = ledger.queue.scheduler()
    assert known is not None and known.holder is not None, "the other one still serves"


def test_goals_that_arise_from_what_was_reached_are_driven_too(home: Home, ledger: Ledger, drivers: Drivers) -> None:
    def goals() -> Mapping[str, int]:
        if ledger.runs.find("side-1").iteration < 1:
            return {"side-1": 1}
        return {run: 4 for run in RUNS if ledger.runs.find(run).iteration < 4}

    drive(home, ledger, goals, at_once=1)
    assert drivers.started == [("side-1", 1, None), *((run, 4, None) for run in RUNS)]


def test_a_run_that_ends_too_early_is_named_with_its_log_and_those_that_wait_are_taken_out(
    home: Home, ledger: Ledger, drivers: Drivers
) -> None:
    write_pools(home, devices=SPEC.devices)
    drivers.reach = lambda run, until: 1 if run == "side-1" else until
    early = r"side-1 is stopped at iteration 1 of 2; it has left the queue: stopped; .*queue\.log"
    with pytest.raises(InfrastructureError, match=early):
        drive(home, ledger)
    # The second one got the devices in the round in which the first one gave them back.
    assert [run for run, _, _ in drivers.started] == ["side-1", "side-2"] and reached(ledger) == [1, 2, -1]
    waiting = ledger.queue.entry("side-3")
    assert waiting is not None and waiting.outcome == REMOVED


def test_a_run_that_is_no_goal_any_longer_may_have_failed(home: Home, ledger: Ledger, drivers: Drivers) -> None:
    drivers.reach = lambda run, until: 0 if run == "side-1" else until

    def goals() -> Mapping[str, int]:
        failed = ledger.runs.find("side-1").iteration == 0
        return {run: 2 for run in RUNS if ledger.runs.find(run).iteration < 2 and not (failed and run == "side-1")}

    drive(home, ledger, goals)
    assert sorted(run for run, _, _ in drivers.started) == list(RUNS)


def test_an_interrupt_takes_all_runs_out_of_the_queue_and_waits_for_their_drivers(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pools(home, devices=SPEC.devices)
    drivers.stays = True
    happenings: Iterator[Callable[[], None]] = iter((_interrupt, lambda: None))
    monkeypatch.setattr(child_runs.time, "sleep", lambda _: next(happenings, drivers.finish)())
    with pytest.raises(KeyboardInterrupt):
        drive(home, ledger)
    assert [run for run, _, _ in drivers.started] == ["side-1"] and reached(ledger) == [-1, -1, -1]
    assert not ledger.queue.rows().open


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_run_that_another_command_drives_is_waited_for(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = ledger.leases.acquire("side-1", this_process(f"{DRIVER}side-1"), 60)

    def end(_: float) -> None:
        for iteration in range(3):
            ledger.commits.commit(fence, commit_of(iteration))
        ledger.records.checkpoint(fence, CheckpointRow("side-1", 0, 2, fence.term, "c", "", 1, "", 0.0))
        ledger.leases.release(fence)

    monkeypatch.setattr(child_runs.time, "sleep", end)
    drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    assert drivers.started == [] and ledger.queue.entry("side-1") is None


def test_the_machines_pool_has_its_gpus_and_more_runs_than_gpus_are_refused(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_pools(None).pools["machine"].devices == 2 * SPEC.devices
    monkeypatch.setattr(child_runs, "local_gpus", lambda: [("Abacus", 1), ("Abacus", 1)])
    assert machine_pools(2).pools["machine"].gpus == (0, 1)
    with pytest.raises(ConfigurationError, match=r"--at-once 3: this machine has 2 GPUs; .* in pools\.yaml"):
        machine_pools(3)
    monkeypatch.setenv("YATT_RAY_ADDRESS", "10.0.0.1:6379")
    assert machine_pools(None).pools["machine"].devices == 1
    assert machine_pools(3).pools["machine"].devices == 3
