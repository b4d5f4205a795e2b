"""Starting, holding and ending a group of small members, not servers: real processes under the real supervisor."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from db.core.holder import this_process
from db.ledger import Ledger
from flows.run import lease
from flows.run.home import Home
from ops.group import control
from ops.group.control import ServiceGroup, await_ready, hold, start, stop
from ops.group.members import KEEPER, MLFLOW, Ports
from ops.group.record import read_record, write_record
from ops.group.status import group_status
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from tests.supervisor.support import script_service, supervised
from tests.waiting import wait_until
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.supervisor.client import current_state, ensure_alive, stop_supervisor
from yatt_core.supervisor.process import ProcessIdentity, is_alive
from yatt_core.supervisor.services import ServiceSpec
from yatt_core.supervisor.state import SupervisorFiles, write_state

ANY = Ports(0, 0, 0, 0)
WORDS = ("--prefect-port", "0", "--mlflow-port", "0", "--dashboard-port", "0")
SECRET = "import os\nassert os.environ['MLFLOW_BACKEND_STORE_URI'].startswith('sqlite:///')"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"


class Members:
    """The members of the group in these tests; a test may replace them."""

    def __init__(self, folder: Path) -> None:
        keeper = replace(script_service(folder, SECRET, name=KEEPER), needs=(MLFLOW,))
        self.services = [script_service(folder, "", name=MLFLOW), keeper]

    def __call__(self, home: Home, ports: Ports, surroundings: object) -> list[ServiceSpec]:
        return self.services


@pytest.fixture
def small(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    members = Members(tmp_path)
    monkeypatch.setattr(control, "members", members)
    monkeypatch.setattr("ops.group.status.HEALTH", {MLFLOW: "", KEEPER: ""})
    monkeypatch.setattr(Ports, "address", lambda ports, member: "")
    monkeypatch.setattr(control, "HOLD_SECONDS", 0.05)
    yield members
    stop_supervisor(home.group, 0.0)
    assert supervised(home.group) == []


def running(home: Home, detach: bool = True) -> ServiceGroup:
    group = start(home, ANY, detach, {})
    await_ready(group, threading.Event(), lambda line: None)
    return group


def supervisor_of(home: Home) -> ProcessIdentity:
    state = current_state(home.group)
    assert state is not None
    return state.identity


class Awaited(threading.Event):
    """An event that records when something waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited.set()
        return super().wait(timeout)


def abandon(home: Home) -> None:
    """Records a holder that no longer lives, as if the group's terminal had gone."""
    record = read_record(home.group)
    assert record is not None
    write_record(home.group, replace(record, holder=replace(ProcessIdentity.current(), start_time=1.0)))


def test_up_status_and_down(home: Home, small: Members, yatt: Yatt) -> None:
    up = yatt("up", "--detach", *WORDS, "-o", "json")
    assert up.code == 0, up.err
    assert [(member["name"], member["state"]) for member in up.document["members"]] == [
        (MLFLOW, "ready"), (KEEPER, "ready"),
    ]  # fmt: skip
    assert {"mlflow: ready", "keeper: ready"} <= set(up.err.splitlines())
    status = yatt("status")
    assert status.code == 0
    assert "the group is up, detached" in status.out
    again = yatt("up", *WORDS)
    assert again.code == 2
    assert f"supervisor: pid {supervisor_of(home).pid}" in again.err
    assert "`yatt down`" in again.err
    down = yatt("down")
    assert (down.code, down.out) == (0, f"{home.folder}: the group is down\n")
    assert down.err.splitlines() == ["keeper: ended", "mlflow: ended"]
    assert supervised(home.group) == []
    assert yatt("status").code == 1


def test_down_names_the_drivers_that_continue_without_the_group(home: Home, small: Members, yatt: Yatt) -> None:
    running(home)
    seed_run(home, ends=False)  # Driven by this process.
    seed_run(home)
    gone = seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger, ledger._database.write() as connection:
        connection.execute(text("UPDATE lease SET process_start = 1 WHERE run = :run"), {"run": gone})
    with Ledger.open(home.ledger) as ledger:
        others = [ledger.runs.create("toy", {}, "", 1).id for _ in range(2)]
        ledger.leases.acquire(others[0], this_process(f"yatt promote of {others[0]}"), 600)
        ledger.leases.acquire(others[1], this_process(lease.KEEPER), 600)  # Of another home on this ledger.
    down = yatt("down", "-o", "json")
    assert down.document == {"home": str(home.folder), "ended": True}
    told = {"toy-1": this_process("driver of toy-1").text, others[0]: this_process(f"yatt promote of {others[0]}").text}
    *members, first, second = down.err.splitlines()
    assert members == ["keeper: ended", "mlflow: ended"]
    for line, (run, holder) in zip((first, second), told.items(), strict=True):
        assert f"run {run} is still held by {holder}," in line and f"`yatt stop {run}`" in line


def test_one_signal_ends_a_group_in_a_terminal(
    home: Home, small: Members, yatt: Yatt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after_it_is_up(group: ServiceGroup, ended: threading.Event, say: control.Say) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return hold(group, ended, say)

    monkeypatch.setattr(control, "hold", after_it_is_up)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    up = yatt("up", *WORDS)
    assert up.code == 0, up.err
    assert up.err.splitlines()[-2:] == ["keeper: ended", "mlflow: ended"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert supervised(home.group) == []


def test_an_immediate_second_signal_leaves_nothing_running(
    home: Home, small: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(home)

    def interrupted(folder: Path, record: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control, "write_record", interrupted)
    seed_run(home, ends=False)
    said = list[str]()
    with pytest.raises(KeyboardInterrupt):
        stop(home, said.append)
    assert ["toy-1" in line for line in said] == [True], "the remaining drivers are named anyway"
    assert supervised(home.group) == []
    assert current_state(home.group) is None


@pytest.mark.verify
def test_a_second_signal_kills_members_that_do_not_end(home: Home, small: Members, tmp_path: Path) -> None:
    small.services = [script_service(tmp_path, STUBBORN, name=MLFLOW, stop_seconds=600.0)]
    running(home)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        stop(home, lambda line: None)
    assert supervised(home.group) == []
    assert current_state(home.group) is None


def test_a_member_that_keeps_dying_fails_the_start_with_its_log(home: Home, small: Members, yatt: Yatt) -> None:
    small.services[0] = replace(
        small.services[0], argv=("/bin/sh", "-c", "echo no such database; exit 3"), restart=False
    )
    up = yatt("up", *WORDS)
    assert (up.code, up.out) == (1, "")
    assert "error: mlflow: exited with code 3; " in up.err and "mlflow.log:\n" in up.err
    assert "no such database" in up.err
    assert supervised(home.group) == []


def test_deaths_are_reported_with_their_reason_and_recorded(home: Home, small: Members) -> None:
    group = running(home)
    state = current_state(home.group)
    assert state is not None
    victim = state.service(MLFLOW).identity
    assert victim is not None
    ended = Awaited()
    said = list[str]()
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold, group, ended, said.append)
        assert ended.awaited.wait(30), "it has seen the current state of the group"
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: said[-1:] == ["mlflow: ready"])
        ended.set()
        assert holding.result(10) == ""
    assert said[0].startswith("mlflow: exited with code -9;") and said[0].endswith("(1 of 5)")
    found = {member.name: member for member in group_status(home).members}
    assert (found[MLFLOW].restarts, found[MLFLOW].last_death, found[MLFLOW].reason) == (1, "exited with code -9", "")


def test_the_terminal_replaces_a_killed_supervisor_but_not_that_of_an_ended_group(home: Home, small: Members) -> None:
    group = running(home, detach=False)
    first = supervisor_of(home)
    said = list[str]()
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold, group, threading.Event(), said.append)
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: (state := current_state(home.group)) and state.identity != first)
        wait_until(lambda: said and group_status(home).state == "up")
        assert "supervisor was killed" in said[0]
        assert stop(home, lambda line: None)
        assert holding.result(10) == "told to stop"


@pytest.mark.verify
def test_a_killed_group_does_not_come_back(home: Home, small: Members, tmp_path: Path) -> None:
    small.services = [script_service(tmp_path, STUBBORN, name=MLFLOW, stop_seconds=600.0)]
    group = running(home, detach=False)
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold, group, threading.Event(), lambda line: None)
        assert stop(home, lambda line: None, timeout=0.2)
        assert "took too long" in holding.result(10)
    assert supervised(home.group) == []


@pytest.mark.verify
def test_a_group_without_its_terminal_is_taken_over_unchanged(home: Home, small: Members) -> None:
    first = running(home, detach=False)
    with pytest.raises(ConfigurationError, match=f"in the terminal of pid {os.getpid()}"):
        start(home, ANY, False, {})
    abandon(home)
    before = supervisor_of(home)
    assert "terminal" in group_status(home).held_by and str(os.getpid()) not in group_status(home).held_by
    second = start(home, ANY, False, {})
    assert second.adopted
    assert second.record.ports == first.record.ports
    assert supervisor_of(home) == before
    assert group_status(home).held_by == f"in the terminal of pid {os.getpid()}"


def test_a_waiting_terminal_does_not_restart_a_group_that_down_has_ended(
    home: Home, small: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(home)
    killed = supervisor_of(home)
    revived = list[bool]()
    os.kill(killed.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(killed))

    def stop_and_let_in(folder: Path, timeout: float, killed: str) -> None:
        stop_supervisor(folder, timeout, killed=killed)
        revived.append(ensure_alive(folder))

    monkeypatch.setattr(control, "stop_supervisor", stop_and_let_in)
    assert stop(home, lambda line: None)
    assert revived == [False]
    assert supervised(home.group) == []


def test_an_ending_group_is_not_taken_over(home: Home, small: Members) -> None:
    running(home, detach=False)
    abandon(home)
    state = current_state(home.group)
    assert state is not None
    write_state(SupervisorFiles.of(home.group), replace(state, ending="signal SIGTERM"))
    with pytest.raises(ConfigurationError, match=f"{home.folder}: .*being stopped"):
        start(home, ANY, False, {})


def test_a_killed_group_is_cleaned_up_and_restarted_on_the_same_ports(
    home: Home, small: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ports", "preflight"):  # between the two, the ports are free, and another process might take them
        monkeypatch.setattr(f"ops.group.{module}.is_free", lambda port: True)
    first = running(home)
    left = supervised(home.group)
    os.kill(supervisor_of(home).pid, signal.SIGKILL)
    wait_until(lambda: current_state(home.group) is None)
    assert len(left) == 2
    assert group_status(home).state == "lost"
    second = running(home)
    assert not second.adopted
    assert second.record.ports == first.record.ports
    assert not set(left) & set(supervised(home.group))
    os.kill(supervisor_of(home).pid, signal.SIGKILL)
    wait_until(lambda: current_state(home.group) is None)
    assert stop(home, lambda line: None), "down ends the remaining members"
    assert supervised(home.group) == []


@pytest.mark.verify
def test_a_group_that_ends_while_it_is_awaited_is_reported(home: Home, small: Members, tmp_path: Path) -> None:
    small.services = [script_service(tmp_path, "import time\ntime.sleep(600)", name=MLFLOW)]
    group = start(home, ANY, True, {})
    stop(home, lambda line: None)
    with pytest.raises(InfrastructureError, match=f"{home.group}: .*told to stop"):
        await_ready(group, threading.Event(), lambda line: None)
