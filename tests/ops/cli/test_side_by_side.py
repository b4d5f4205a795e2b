"""Drivers side by side: how many at a time, on which GPUs, and what happens to failures and to runs that others drive."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from db.core.holder import this_process
from db.ledger import Ledger
from flows.run.home import Home
from ops.cli import side_by_side
from ops.cli.side_by_side import SideBySide, runs_at_once
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.errors import InfrastructureError

SECONDS = 60.0


class Drivers:
    """Stands in for the processes of drivers; each ends once the test says so, or at once."""

    def __init__(self, codes: dict[str, int]) -> None:
        self.codes, self.started, self.at_once, self.most = codes, list[tuple[str, str | None]](), 0, 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, home: Home, run: str, log: Any, accept: bool, until: int, devices: str | None) -> Any:
        self.started.append((run, devices))
        code = f"import sys, time; time.sleep(0.2); sys.exit({self.codes.get(run, 0)})"
        self._processes.append(subprocess.Popen([sys.executable, "-S", "-c", code]))
        self.most = max(self.most, sum(process.poll() is None for process in self._processes))
        return self._processes[-1]


@pytest.fixture
def ledger(home: Home) -> Iterator[Ledger]:
    for _ in range(3):
        seed_run(home, committed=0)
    with Ledger.open(home.ledger) as ledger:
        yield ledger


def drivers(monkeypatch: pytest.MonkeyPatch, **codes: int) -> Drivers:
    found = Drivers({name.replace("_", "-"): code for name, code in codes.items()})
    monkeypatch.setattr(side_by_side, "start_driver_process", found.start)
    return found


def test_as_many_run_at_a_time_as_there_are_places(home: Home, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    found = drivers(monkeypatch)
    SideBySide(home, ledger, ["0", "1"])(["toy-1", "toy-2", "toy-3"], 0)
    assert [run for run, _ in found.started] == ["toy-1", "toy-2", "toy-3"]
    assert {devices for _, devices in found.started} == {"0", "1"} and found.most == 2


def test_a_failure_is_reported_once_the_others_have_ended(
    home: Home, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = drivers(monkeypatch, toy_1=3)
    with pytest.raises(InfrastructureError, match=r"toy-1.*exit code 3"):
        SideBySide(home, ledger, [None, None])(["toy-1", "toy-2", "toy-3"], 0)
    assert {"toy-1", "toy-2"} <= {run for run, _ in found.started}


def test_a_run_that_is_driven_already_is_waited_for(
    home: Home, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = drivers(monkeypatch)
    fence = ledger.leases.acquire("toy-1", this_process("yatt driver of toy-1"), 600)
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (SideBySide(home, ledger, [None])(["toy-1"], 0), ended.set()))
    thread.start()
    time.sleep(3 * side_by_side.POLL_SECONDS)
    assert not ended.is_set()
    ledger.leases.release(fence)
    assert ended.wait(SECONDS) and found.started == []
    thread.join()


def test_gpus_are_divided_among_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("YATT_RAY_ADDRESS", raising=False)
    monkeypatch.setattr("yatt_core.cluster.gpus.local_gpus", lambda: [("card", 1)] * 5)
    spec = toy_spec()
    assert spec.devices == 2
    assert runs_at_once(spec) == (2, ["0,1", "2,3"])
    monkeypatch.setattr("yatt_core.cluster.gpus.local_gpus", list)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(7))
    assert runs_at_once(spec) == (3, [None] * 3)
    monkeypatch.setenv("YATT_RAY_ADDRESS", "127.0.0.1:1")
    assert runs_at_once(spec) == (1, [None])
