"""Outbox rows of a dead run: who may deliver them, when, and how a driver gets its run back meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.core.errors import Fenced, LeaseHeld
from db.core.holder import Holder, this_process
from db.ledger import Ledger
from db.write.outbox import OutboxEntry, PendingDelivery
from flows.delivery.orphaned_outbox import (
    FIRST_DELAY,
    MAX_DELAY,
    SILENT_SECONDS,
    DeliveryBackoff,
    deliver_dead,
    is_dead,
    lost_runs,
    tell_lost,
)
from flows.delivery.outbox import TrackerDeliverer
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.lease import KEEPER, take_lease
from flows.run.protocols import OutboxItem
from tests.services import ROOT
from yatt_core.errors import InfrastructureError
from yatt_core.spec import load_spec

HOLDER = this_process("a driver")
GONE: Callable[[Holder], bool] = lambda holder: True  # noqa: E731
ALIVE: Callable[[Holder], bool] = lambda holder: False  # noqa: E731


class Recorder:
    """A tracker that keeps the keys of the rows that it receives; it calls a function before each delivery."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.arrived: list[str] = []
        self._before = before

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        self._before()
        self.arrived += [item.key for item in items]
        return {item.key: "tracking-run" for item in items if item.kind == "run"}


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    with Ledger.open(place) as ledger:
        yield ledger


def left_behind(ledger: Ledger, rows: int = 150) -> tuple[str, Fence]:
    """Creates a run whose driver holds the lease and has rows to send."""
    run = ledger.runs.create("toy", {}, "digest", 1).id
    fence = ledger.leases.acquire(run, HOLDER, 60)
    entries = [OutboxEntry(f"{run}/run", "run", {}, 1)]
    entries += [OutboxEntry(f"{run}/tag{i}", "tags", {"i": str(i)}, i) for i in range(rows)]
    ledger.outbox.enqueue(fence, entries)
    return run, fence


@pytest.mark.parametrize(
    ("holder", "silent", "gone", "dead"),
    [
        (None, -5.0, ALIVE, True),
        (HOLDER, -5.0, ALIVE, False),
        (HOLDER, -5.0, GONE, False),
        (HOLDER, 1.0, GONE, True),
        (HOLDER, 1.0, ALIVE, False),
        (HOLDER, SILENT_SECONDS + 1, ALIVE, True),
    ],
)
def test_only_a_run_that_nobody_will_drive_again_is_dead(
    holder: Holder | None, silent: float, gone: Callable[[Holder], bool], dead: bool
) -> None:
    assert is_dead(PendingDelivery("toy-1", 3, holder, silent), gone) is dead


def test_a_stopped_driver_does_not_count_as_dead() -> None:
    """A driver that was stopped for a minute can still continue, unless a keeper has taken its lease meanwhile."""
    assert not is_dead(PendingDelivery("toy-1", 3, HOLDER, 60.0))
    assert is_dead(PendingDelivery("toy-1", 3, replace(HOLDER, process_start=1), 60.0))


def test_delays_double_up_to_their_limit() -> None:
    trouble = DeliveryBackoff()
    delays = []
    for _ in range(12):
        trouble = trouble.failed(100.0, "away")
        delays.append(trouble.again_at - 100.0)
    assert delays[:3] == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY]
    assert delays[-1] == MAX_DELAY
    assert (trouble.failures, trouble.reason) == (12, "away")


def test_rows_are_delivered_once_and_the_lease_is_released(place: str, ledger: Ledger) -> None:
    run, fence = left_behind(ledger)
    assert [(left.run, left.rows, left.holder) for left in ledger.outbox.undelivered()] == [(run, 151, HOLDER)]
    with pytest.raises(LeaseHeld):
        deliver_dead(ledger, run, TrackerDeliverer(Recorder()))
    ledger.leases.release(fence)
    tracker = Recorder()
    assert deliver_dead(ledger, run, TrackerDeliverer(tracker)) == 151
    assert tracker.arrived == [f"{run}/run", *(f"{run}/tag{i}" for i in range(150))]
    assert ledger.outbox.undelivered() == ()
    assert ledger.runs.find(run).mlflow_run_id == "tracking-run"
    assert ledger.overview.line(run).holder is None
    again = ledger.leases.acquire(run, HOLDER, 60)
    assert ledger.outbox.claim(again) == []


def test_the_tracker_is_closed_only_after_the_lease_is_released(place: str, ledger: Ledger) -> None:
    run, fence = left_behind(ledger, rows=3)
    ledger.leases.release(fence)
    holders: list[str | None] = []

    class Closing(Recorder):
        def close(self) -> None:
            with Ledger.open(place, migrate=False) as other:
                holders.append(other.overview.line(run).holder)

    assert deliver_dead(ledger, run, TrackerDeliverer(Closing())) == 4
    assert holders == [None]


def test_undelivered_rows_wait_for_the_next_attempt(place: str, ledger: Ledger) -> None:
    run, fence = left_behind(ledger)
    ledger.leases.release(fence)

    def unreachable() -> None:
        raise InfrastructureError("the tracker is away")

    with pytest.raises(InfrastructureError, match="is away"):
        deliver_dead(ledger, run, TrackerDeliverer(Recorder(unreachable)))
    assert ledger.overview.line(run).holder is None
    assert ledger.outbox.counts(run) == (151, 0)
    assert deliver_dead(ledger, run, TrackerDeliverer(Recorder())) == 151


def test_a_driver_waits_only_for_the_keeper(place: str, ledger: Ledger) -> None:
    run, fence = left_behind(ledger)
    ledger.leases.release(fence)
    delivering = threading.Event()
    go_on = threading.Event()

    def slow() -> None:
        delivering.set()
        assert go_on.wait(30)

    tracker = Recorder(slow)
    keeper = threading.Thread(target=deliver_dead, args=(ledger, run, TrackerDeliverer(tracker)))
    keeper.start()
    assert delivering.wait(30)
    with pytest.raises(LeaseHeld, match=KEEPER):
        take_lease(ledger, run, "driver", 60, patience=0.0)
    taken: list[Fence] = []
    driver = threading.Thread(target=lambda: taken.append(take_lease(ledger, run, "driver", 60)))
    driver.start()
    go_on.set()
    driver.join(30)
    keeper.join(30)
    assert [one.term for one in taken] == [3]
    assert len(tracker.arrived) == len(set(tracker.arrived)) == 151
    with pytest.raises(LeaseHeld, match="driver"):
        take_lease(ledger, run, "another driver", 60)


def test_a_replaced_keeper_records_nothing(place: str, ledger: Ledger) -> None:
    """The keeper was stopped during a delivery: its lease expired, a driver took the run, then the keeper continued."""
    run, fence = left_behind(ledger, rows=3)
    ledger.leases.release(fence)

    def replaced() -> None:
        with Ledger.open(place, migrate=False) as other:
            other.leases.acquire(run, this_process("driver"), 60, lambda holder: True)

    with pytest.raises(Fenced):
        deliver_dead(ledger, run, TrackerDeliverer(Recorder(replaced)))
    assert ledger.outbox.counts(run) == (4, 0)
    assert ledger.overview.line(run).holder is not None


def test_the_tracker_learns_that_a_driver_was_killed(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    run = create_run(home, load_spec(ROOT / "tests" / "specs" / "virtual.yaml"))
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, HOLDER, 60)
        ledger.runs.set_state(fence, "running", "")
        assert lost_runs(ledger, ALIVE) == []
        ledger.leases.renew(fence, -1)
        assert lost_runs(ledger, ALIVE) == [] and lost_runs(ledger, GONE) == [run]
        tell_lost(ledger, run)
        assert lost_runs(ledger, GONE) == [], "once"
        tracker = Recorder()
        told = ledger.leases.acquire(run, HOLDER, 60)
        TrackerDeliverer(tracker).deliver(ledger, told, last=True)
        assert tracker.arrived == [f"{run}/t1/lost/tags", f"{run}/t1/lost/status"]
        ledger.runs.set_state(told, "stopped", "")
        ledger.leases.renew(told, -1)
        assert lost_runs(ledger, GONE) == [], "it had ended already"
