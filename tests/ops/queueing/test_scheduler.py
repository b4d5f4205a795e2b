"""The scheduler's process: it waits for a pools file, stands by for another one, and gives its lease back at the end."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from db.ledger import Ledger
from flows.queueing.pools_file import pools_file
from flows.run.home import Home
from ops.group.members import QUEUE, QUEUE_READY, Ports, members
from ops.queueing.processes import DriverProcesses
from ops.queueing.scheduler import SchedulerService
from tests.db.tools import holder
from yatt_core.errors import InfrastructureError

POOLS = "pools: {main: {devices: 2}}\n"


class Rounds(threading.Event):
    """Ends a service after some pauses; something may happen in each."""

    def __init__(self, *happenings: Callable[[], object]) -> None:
        super().__init__()
        self._happenings = list(happenings)

    def wait(self, timeout: float | None = None) -> bool:
        if self._happenings:
            self._happenings.pop(0)()
        else:
            self.set()
        return self.is_set()


def scheduled_by(home: Home) -> str | None:
    with Ledger.open(home.ledger) as ledger:
        row = ledger.queue.scheduler()
    return None if row is None or row.holder is None else row.holder.text


@pytest.fixture
def home(home: Home) -> Home:
    home.folder.mkdir()
    return home


def test_it_waits_for_a_pools_file_and_says_so_once(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen: list[str | None] = []
    rounds = Rounds(
        lambda: None,
        lambda: pools_file(home).write_text(POOLS),
        lambda: seen.append(scheduled_by(home)),
    )
    SchedulerService(home, rounds).run()
    assert seen[0] is not None and seen[0].startswith("yatt scheduler")
    assert scheduled_by(home) is None
    assert caplog.text.count("there are no pools yet") == 1
    assert QUEUE_READY in caplog.text


def test_it_stands_by_while_another_one_is_alive(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    pools_file(home).write_text(POOLS)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.take("queue", holder("yatt scheduler far away"), 600.0)
        seen: list[str | None] = []
        rounds = Rounds(lambda: ledger.leases.release(fence), lambda: seen.append(scheduled_by(home)))
        SchedulerService(home, rounds).run()
    assert "the queue is scheduled by yatt scheduler far away" in caplog.text
    assert seen[0] is not None and "far away" not in seen[0]


def test_a_mistake_in_the_pools_file_does_not_end_it(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    pools_file(home).write_text("pools: {main: {device: 2}}\n")
    rounds = Rounds(lambda: None, lambda: pools_file(home).write_text(POOLS), lambda: None)
    SchedulerService(home, rounds).run()
    assert caplog.text.count("did you mean 'devices'") == 1


def test_it_resigns_when_the_pools_file_is_deleted(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    pools_file(home).write_text(POOLS)
    seen: list[str | None] = []
    rounds = Rounds(lambda: pools_file(home).unlink(), lambda: seen.append(scheduled_by(home)))
    SchedulerService(home, rounds).run()
    assert seen == [None] and "there are no pools yet" in caplog.text


def test_it_is_a_member_of_the_group(home: Home) -> None:
    (queue,) = [each for each in members(home, Ports(1, 2, 3, 4), {}) if each.name == QUEUE]
    assert queue.argv[-1] == "ops.queueing.scheduler"
    assert queue.environment["YATT_HOME"] == str(home.folder)


def test_a_driver_is_known_by_its_pid_and_its_start(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = DriverProcesses(home)
    seen: list[tuple[str | None, int | None]] = []

    def start(*, devices: str | None, until: int | None, **_: object) -> subprocess.Popen[bytes]:
        seen.append((devices, until))
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    monkeypatch.setattr("ops.queueing.processes.start_driver_process", start)
    pid, process_start = drivers.start("toy-1", (3, 5), 7)
    assert seen == [("3,5", 7)]
    assert drivers.is_alive(pid, process_start)
    assert not DriverProcesses(home).is_alive(pid, process_start + 10)
    child = drivers._children[pid].process
    assert child.stdin is not None
    child.stdin.close()
    child.wait()
    assert not drivers.is_alive(pid, process_start)
    (home.folder / "toy-2").write_text("not a folder")
    with pytest.raises(InfrastructureError, match="run toy-2: its driver cannot be started"):
        drivers.start("toy-2", None, None)
