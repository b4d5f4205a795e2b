"""Runs of a sweep, a soup or a pipeline in the queue: its limits hold, and no run gets a second driver, whoever is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from db.core.engine import Fence
from db.core.errors import LeaseHeld
from db.core.holder import this_process
from db.core.queue_rows import AllocationRow, EntryRow
from db.ledger import Ledger
from db.write.lease import ENDED
from db.write.queueing import REMOVED, SUBMITTED, Submission
from db.write.records import CheckpointRow
from db.write.scheduling import Grant, Scheduling
from flows.members.driving import goals_of
from flows.queueing.pools_file import pools_file
from flows.queueing.scheduler import Scheduler
from flows.run.home import Home
from flows.run.lease import DRIVER
from ops.pipelines.work import tools_of
from ops.queueing import child_runs, processes
from ops.queueing.child_runs import ChildRuns, machine_pools
from ops.queueing.processes import DriverProcesses
from ops.terminal.clusters import Clusters
from tests.db.tools import commit_of
from tests.own_time import replace_time
from tests.services import ROOT
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.spec import load_spec, override_spec
from yatt_core.spec.reading.documents import yaml_text

SPEC = load_spec(ROOT / "configs" / "virtual.yaml", ["name=side", "iterations=10"])
RUNS = ("side-1", "side-2", "side-3")
LOOKS = 4
"""More than a command takes at a run whose driver ends."""
GPU = ("Abacus", 1)


class Killed(BaseException):
    """The command dies here."""


class Drivers:
    """Stands in for drivers: processes whose runs reach what the test says, at once unless they stay until `finish`.

    held: number of runs that held devices at each start.
    late: they take their leases only in `finish`, as a process does that has just been started.
    had_lease: those that got it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.reach: Callable[[str, int], int] = lambda run, until: until
        self.stays = False
        self.late = False
        self.had_lease: list[int] = []
        self.started: list[tuple[str, int | None, str | None]] = []
        self.clusters: list[str | None] = []
        self.held: list[int] = []
        self._late: list[tuple[str, int, subprocess.Popen[bytes]]] = []
        self._waiting: list[tuple[Fence, int, subprocess.Popen[bytes]]] = []

    def start(
        self, home: Home, run: str, *, until: int, devices: str | None, cluster: Any, **_: Any
    ) -> subprocess.Popen[bytes]:
        self.started.append((run, until, devices))
        self.clusters.append(None if cluster is None else cluster.folder.name)
        self.held.append(len(self._ledger.queue.rows().held))
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._late.append((run, until, process))
        if not self.late:
            self._begin()
        if not self.stays:
            self.finish()
        return process

    def _begin(self) -> None:
        """Has drivers take their leases, in the order of their starts; those that do not get one end at once."""
        for run, until, process in self._late:
            try:
                fence = self._ledger.leases.acquire(run, this_process(f"{DRIVER}{run}"), 60)
            except LeaseHeld:
                process.communicate()
                continue
            self.had_lease.append(process.pid)
            self._ledger.leases.start_session(fence, "flow", "flow")
            self._ledger.runs.set_state(fence, "running")
            self._waiting.append((fence, until, process))
        self._late.clear()

    def finish(self) -> None:
        """Lets the drivers that have begun reach what they are to reach, and end."""
        self._begin()
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
    monkeypatch.setattr(child_runs, "local_gpus", list)
    monkeypatch.setattr(child_runs.os, "sched_getaffinity", lambda _: set(range(2 * SPEC.devices)))
    monkeypatch.setattr(child_runs, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(child_runs, "ROUND_SECONDS", 0.0)
    return made


def drive(home: Home, ledger: Ledger, goals: Any = None, at_once: int | None = None) -> None:
    with Clusters(home) as clusters:
        own = ChildRuns(home=home, ledger=ledger, clusters=clusters, at_once=at_once, by="ann")
        own(goals or goals_of(ledger, RUNS, 2))


def drive_until(home: Home, ledger: Ledger, until: int, *happenings: Callable[[], object]) -> None:
    """Drives the first run; something may happen at each look at it, and after the last look its command is killed."""
    left = iter(happenings)
    with pytest.MonkeyPatch.context() as patch:
        replace_time(patch, child_runs, sleep=lambda _: next(left, _die)())
        drive(home, ledger, goals_of(ledger, RUNS[:1], until))


def _die() -> None:
    raise Killed


def write_pools(home: Home, **pool: Any) -> None:
    pools_file(home).write_text(yaml_text({"pools": {"main": pool}}))


def reached(ledger: Ledger) -> list[int]:
    return [ledger.runs.find(run).iteration for run in RUNS]


def submitted(ledger: Ledger, run: str) -> int:
    return len(ledger.events.of_kind(run, SUBMITTED))


def entry_of(ledger: Ledger, run: str) -> EntryRow:
    entry = ledger.queue.entry(run)
    assert entry is not None
    return entry


def test_each_run_is_driven_once_to_its_goal_and_as_many_at_a_time_as_the_machine_holds(
    home: Home, ledger: Ledger, drivers: Drivers
) -> None:
    drivers.stays = True
    with pytest.MonkeyPatch.context() as patch:
        replace_time(patch, child_runs, sleep=lambda _: drivers.finish())
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
        replace_time(patch, child_runs, sleep=lambda _: drivers.finish())
        drive(home, ledger)
    assert drivers.held == [1, 1, 1] and reached(ledger) == [2, 2, 2]
    said = [
        line for line in capsys.readouterr().err.splitlines() if "waits in the queue: project default may hold" in line
    ]
    assert len(said) == 1 and "side-2" in said[0], "of two that wait for the same"


def test_devices_that_another_run_holds_are_waited_for(home: Home, ledger: Ledger, drivers: Drivers) -> None:
    write_pools(home, devices=SPEC.devices)
    (other,) = RUNS[:1]
    drivers.stays = True
    with pytest.MonkeyPatch.context() as patch:
        replace_time(patch, child_runs, sleep=lambda _: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            drive(home, ledger, lambda: {other: 5})
    assert drivers.started == [(other, 5, None)]
    with pytest.MonkeyPatch.context() as patch:
        replace_time(patch, child_runs, sleep=lambda _: drivers.finish())
        drive(home, ledger, goals_of(ledger, RUNS[1:], 2))
    assert drivers.held == [1, 1, 1] and reached(ledger) == [5, 2, 2]


def test_a_run_that_never_fits_is_refused(home: Home, ledger: Ledger, drivers: Drivers) -> None:
    write_pools(home, devices=9, quotas={"default": SPEC.devices - 1})
    with pytest.raises(ConfigurationError, match=rf"need {SPEC.devices} devices each, and ann can have at most"):
        drive(home, ledger)
    assert drivers.started == []


def create_larger(ledger: Ledger) -> str:
    """Creates a run whose project may hold too few devices for it."""
    spec = override_spec(SPEC, ["name=large", "billing.project=small"], "a large run")
    return ledger.runs.create("large", spec.model_dump(mode="json"), spec.digest, 10).id


def test_a_run_that_never_fits_is_refused_before_any_other_is_in_the_queue(
    home: Home, ledger: Ledger, drivers: Drivers
) -> None:
    write_pools(home, devices=9, quotas={"small": SPEC.devices - 1})
    large = create_larger(ledger)
    with pytest.raises(ConfigurationError, match="for project small"):
        drive(home, ledger, goals_of(ledger, (*RUNS, large), 2), at_once=1)
    assert drivers.started == [] and not ledger.queue.rows().open


def test_runs_that_are_driven_end_before_one_that_never_fits_is_refused(
    home: Home, ledger: Ledger, drivers: Drivers, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pools(home, devices=SPEC.devices, quotas={"small": SPEC.devices - 1})
    large = create_larger(ledger)

    def goals() -> Mapping[str, int]:
        wanted = {"side-1": 1, "side-2": 2}
        if ledger.runs.find("side-1").iteration >= 1:
            wanted[large] = 2
        return {run: until for run, until in wanted.items() if ledger.runs.find(run).iteration < until}

    with pytest.raises(ConfigurationError, match="for project small"):
        drive(home, ledger, goals)
    assert reached(ledger)[:2] == [1, 2] and not ledger.queue.rows().open
    assert capsys.readouterr().err.count("no other run is submitted now: ") == 1


def test_of_the_drivers_of_a_run_whose_start_was_interrupted_one_gets_the_lease(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers.stays = True
    drivers.late = True

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Scheduling, "note_driver", killed)
        with pytest.raises(Killed):
            drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    replace_time(monkeypatch, child_runs, sleep=lambda _: drivers.finish())
    drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    # The process of the first start was not recorded, so there is a second one, which ends at once.
    assert drivers.started == [("side-1", 2, None)] * 2 and len(drivers.had_lease) == 1
    assert reached(ledger)[0] == 2 and len(ledger.overview.sessions("side-1")) == 1


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


@pytest.mark.parametrize(
    ("pool", "devices", "until", "submissions"),
    [
        ("main", SPEC.devices, 2, 1),
        ("gone", SPEC.devices, 2, 2),
        ("main", 9 * SPEC.devices, 2, 2),
        ("main", SPEC.devices, 1, 2),
        ("main", SPEC.devices, None, 2),
    ],
)
def test_a_run_that_was_left_waiting_for_something_else_is_submitted_anew(
    home: Home, ledger: Ledger, drivers: Drivers, pool: str, devices: int, until: int | None, submissions: int
) -> None:
    left = Submission(pools=(pool,), owner="ann", project="default", priority=3, devices=devices, until=until)
    ledger.submissions.submit("side-1", left, "ann")
    write_pools(home, devices=SPEC.devices)
    drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    assert drivers.started == [("side-1", 2, None)] and reached(ledger)[0] == 2
    assert submitted(ledger, "side-1") == submissions and entry_of(ledger, "side-1").priority == 3


@pytest.mark.parametrize("before", [2, 6])
def test_a_run_that_was_left_while_it_was_driven_to_another_iteration_is_driven_on(
    home: Home, ledger: Ledger, drivers: Drivers, before: int
) -> None:
    drivers.stays = True
    with pytest.raises(Killed):
        drive_until(home, ledger, before)
    drive_until(home, ledger, 4, lambda: None, *[drivers.finish] * LOOKS)
    assert drivers.started == [("side-1", before, None), ("side-1", 4, None)] and reached(ledger)[0] == 4


def test_runs_that_were_left_while_they_were_taken_out_are_driven_on(
    home: Home, ledger: Ledger, drivers: Drivers
) -> None:
    drivers.stays = True
    with pytest.raises(KeyboardInterrupt):
        drive_until(home, ledger, 2, _interrupt, _interrupt)
    assert entry_of(ledger, "side-1").wanted == "remove"
    drive_until(home, ledger, 2, lambda: None, *[drivers.finish] * LOOKS)
    assert drivers.started == [("side-1", 2, None)] * 2 and reached(ledger)[0] == 2


def test_a_run_that_people_held_back_is_driven_by_the_next_command(
    home: Home, ledger: Ledger, drivers: Drivers
) -> None:
    drivers.stays = True
    with pytest.raises(Killed):
        drive_until(home, ledger, 2, lambda: ledger.submissions.change("side-1", "ann", wanted="hold"))
    drive_until(home, ledger, 2, lambda: None, *[drivers.finish] * LOOKS)
    assert drivers.started == [("side-1", 2, None)] * 2 and reached(ledger)[0] == 2


def test_a_run_that_has_reached_its_goal_needs_no_devices(home: Home, ledger: Ledger, drivers: Drivers) -> None:
    write_pools(home, devices=SPEC.devices)
    drivers.stays = True
    with pytest.raises(Killed):
        drive_until(home, ledger, 5)
    fences = list[Fence]()

    def driven_by_another() -> None:
        fence = ledger.leases.acquire("side-2", this_process(f"{DRIVER}side-2"), 60)
        for iteration in range(3):
            ledger.commits.commit(fence, commit_of(iteration))
        ledger.records.checkpoint(fence, CheckpointRow("side-2", 0, 2, fence.term, "c", "", 1, "", 0.0))
        ledger.leases.release(fence)
        fences.append(fence)

    happenings: Iterator[Callable[[], object]] = iter((driven_by_another, lambda: None))
    with pytest.MonkeyPatch.context() as patch:
        replace_time(patch, child_runs, sleep=lambda _: next(happenings, _die)())
        drive(home, ledger, lambda: {} if fences else {"side-2": 2})
        drive(home, ledger, lambda: {"side-2": 2})
    assert [run for run, _, _ in drivers.started] == ["side-1"] and entry_of(ledger, "side-2").outcome == REMOVED
    drivers.finish()


def test_a_priority_that_people_gave_stays(home: Home, ledger: Ledger, drivers: Drivers) -> None:
    drivers.stays = True

    def hurried() -> None:
        ledger.submissions.change("side-1", "ann", priority=5)
        drivers.finish()

    def goals() -> Mapping[str, int]:
        last = ledger.runs.find("side-1").iteration
        return {} if last >= 2 else {"side-1": 2 if last >= 1 else 1}

    happenings: Iterator[Callable[[], object]] = iter((hurried,))
    with pytest.MonkeyPatch.context() as patch:
        replace_time(patch, child_runs, sleep=lambda _: next(happenings, drivers.finish)())
        drive(home, ledger, goals)
    assert [until for _, until, _ in drivers.started] == [1, 2] and entry_of(ledger, "side-1").priority == 5


def test_a_mistake_in_the_pools_file_is_said_once_and_waited_for(
    home: Home, ledger: Ledger, drivers: Drivers, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pools(home, devices=SPEC.devices)
    drivers.stays = True

    def mistaken() -> None:
        pools_file(home).write_text("pools: {main: {device: 2}}\n")
        drivers.finish()

    drive_until(home, ledger, 2, mistaken, lambda: None, lambda: write_pools(home, devices=SPEC.devices), lambda: None)
    assert reached(ledger)[0] == 2
    assert capsys.readouterr().err.count("the queue is not scheduled now: ") == 1


def test_a_run_that_people_hold_back_while_it_gets_devices_is_waited_for(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = Scheduling.allocate

    def held_back(scheduling: Scheduling, fence: Fence, grant: Grant, lease_term: int) -> AllocationRow:
        monkeypatch.setattr(Scheduling, "allocate", allocate)
        ledger.submissions.change(grant.run, "ann", wanted="hold")
        return allocate(scheduling, fence, grant, lease_term)

    monkeypatch.setattr(Scheduling, "allocate", held_back)
    drive_until(
        home,
        ledger,
        2,
        lambda: None,
        lambda: ledger.submissions.change("side-1", "ann", wanted="run"),
        *[lambda: None] * 3,
    )
    assert drivers.started == [("side-1", 2, None)] and reached(ledger)[0] == 2


def test_it_schedules_when_a_driver_has_ended_and_otherwise_seldom(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_runs, "ROUND_SECONDS", 1e6)
    drivers.stays = True
    rounds: list[int] = []
    round_of = Scheduler.round

    def counted(scheduler: Scheduler) -> None:
        rounds.append(1)
        round_of(scheduler)

    monkeypatch.setattr(Scheduler, "round", counted)
    seen: list[int] = []
    looks = [lambda: seen.append(len(rounds))] * 3
    drive_until(home, ledger, 2, *looks, drivers.finish, lambda: None)
    assert seen == [1, 1, 1] and len(rounds) == 2 and reached(ledger)[0] == 2


def test_while_another_scheduler_serves_the_queue_the_command_starts_nothing(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pools(home, devices=9)
    other = Scheduler(home, ledger, DriverProcesses(home))
    other.lead()
    takes: list[str] = []
    monkeypatch.setattr(Scheduler, "lead", lambda _: takes.append("a write"))
    rounds: list[int] = []

    def wait(_: float) -> None:
        rounds.append(len(drivers.started))
        if len(rounds) > 2:
            other.round()

    replace_time(monkeypatch, child_runs, sleep=wait)
    drive(home, ledger)
    assert rounds[:3] == [0, 0, 0] and reached(ledger) == [2, 2, 2]
    assert drivers.clusters == [None] * 3, "its drivers have services of their own"
    assert takes == []
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
    replace_time(monkeypatch, child_runs, sleep=lambda _: next(happenings, drivers.finish)())
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

    replace_time(monkeypatch, child_runs, sleep=end)
    drive(home, ledger, goals_of(ledger, RUNS[:1], 2))
    assert drivers.started == [] and ledger.queue.entry("side-1") is None


def test_the_machines_pool_has_its_gpus_and_more_runs_than_gpus_are_refused(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_pools(None).pools["machine"].devices == 2 * SPEC.devices
    monkeypatch.setattr(child_runs, "local_gpus", lambda: [GPU] * 2)
    assert machine_pools(2).pools["machine"].gpus == (0, 1)
    with pytest.raises(ConfigurationError, match=r"--at-once 3: this machine has 2 GPUs; .* in pools\.yaml"):
        machine_pools(3)
    monkeypatch.setenv("YATT_RAY_ADDRESS", "10.0.0.1:6379")
    assert machine_pools(None).pools["machine"].devices == 1
    assert machine_pools(3).pools["machine"].devices == 3


@pytest.mark.parametrize(("gpus", "devices"), [(0, SPEC.devices // 2), (SPEC.devices, SPEC.devices)])
def test_runs_at_once_share_the_cores_of_a_machine_but_not_its_gpus(
    home: Home, ledger: Ledger, drivers: Drivers, monkeypatch: pytest.MonkeyPatch, gpus: int, devices: int
) -> None:
    monkeypatch.setattr(child_runs, "local_gpus", lambda: [GPU] * gpus)
    monkeypatch.setattr(child_runs.os, "sched_getaffinity", lambda _: set(range(SPEC.devices)))
    drive(home, ledger, at_once=2)
    assert [len(row.numbers) for row in ledger.queue.allocations()] == [devices] * 3 and reached(ledger) == [2, 2, 2]


def test_the_runs_of_a_pipeline_are_in_the_queue_for_who_runs_or_deployed_it(
    home: Home, ledger: Ledger, drivers: Drivers
) -> None:
    write_pools(home, devices=9, quotas={"small": SPEC.devices - 1})
    with Clusters(home) as clusters:
        tools = tools_of(home=home, ledger=ledger, clusters=clusters, at_once=None, by="bob")
        tools.drives()(goals_of(ledger, RUNS[:1], 2))
        with pytest.raises(ConfigurationError, match=r"bob can have at most .* for project small"):
            tools.require_devices(override_spec(SPEC, ["billing.project=small"], "a large run"))
    assert entry_of(ledger, "side-1").owner == "bob"
