"""The lease keeper: renews, notices a takeover, and relies on its own clock when it cannot renew."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from db.core.engine import Fence
from db.core.errors import Fenced, LeaseHeld, LedgerUnavailable, LedgerVersionError
from db.core.holder import this_process
from db.ledger import Ledger
from flows.run.lease import LeaseKeeper, operator_lease, renewed
from tests.db.tools import holder
from tests.waiting import wait_until
from yatt_core.errors import FencedError

LIFE = 0.5
WAIT = 0.3


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[str, Ledger, Fence]]:
    address = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(address) as ledger:
        run = ledger.runs.create("toy", {}, "digest", 1).id
        yield address, ledger, ledger.leases.acquire(run, this_process(), LIFE)


def keeper_of(held: tuple[str, Ledger, Fence], wait: float = WAIT, **options: Any) -> LeaseKeeper:
    address, _, fence = held
    return LeaseKeeper(address, fence, LIFE, wait, **options)


def lost(keeper: LeaseKeeper) -> str:
    """Waits until the keeper reports the lease as lost, and returns the reason."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            keeper.check()
        except FencedError as error:
            return str(error)
        time.sleep(0.01)
    raise AssertionError("the lease was never lost")


def test_a_renewed_lease_outlives_its_duration(held: tuple[str, Ledger, Fence]) -> None:
    beats: list[str] = []
    keeper = keeper_of(held, wait=20.0, on_beat=lambda ledger: beats.append(ledger.runs.find(held[2].run).state))
    keeper.start()
    time.sleep(3 * LIFE)
    keeper.check()
    keeper.stop()
    assert beats, "observers are called at every renewal"


def test_a_takeover_is_noticed(held: tuple[str, Ledger, Fence]) -> None:
    _, ledger, fence = held
    keeper = keeper_of(held, wait=20.0)
    ledger.leases.acquire(fence.run, this_process("another"), LIFE, holder_is_gone=lambda holder: True)
    keeper.start()
    assert "term" in lost(keeper)
    keeper.stop()


def test_a_stopped_and_continued_driver_knows_by_its_own_clock(held: tuple[str, Ledger, Fence]) -> None:
    """Nothing has renewed the lease, since the thread was stopped with the process; the database is not asked."""
    keeper = keeper_of(held)
    keeper.check()
    held[1].close()
    time.sleep(LIFE + 0.1)
    with pytest.raises(LedgerUnavailable, match=r"lease of term 1 .* \d+\.\d s ago"):
        keeper.check()


def test_a_driver_that_overslept_continues_once_the_ledger_confirms_its_term(held: tuple[str, Ledger, Fence]) -> None:
    keeper = keeper_of(held, wait=20.0)
    time.sleep(LIFE + 0.1)
    keeper.start()
    keeper.check()
    keeper.stop()


def test_a_main_loop_that_hangs_is_not_kept_alive(held: tuple[str, Ledger, Fence]) -> None:
    keeper = keeper_of(held, wait=20.0)
    keeper.allow(0.05, "learn of iteration 3")
    keeper.start()
    reason = lost(keeper)
    assert "learn of iteration 3" in reason
    assert "test_lease_keeper" in reason, "it contains the main thread's stack"
    keeper.stop()


def test_the_lease_of_a_sweep_whose_main_loop_hangs_is_another_hosts_soon(held: tuple[str, Ledger, Fence]) -> None:
    _, ledger, _ = held
    subject = "sweep/toy-1"
    fence = ledger.leases.take(subject, holder("near"), LIFE)
    with renewed(ledger, fence, LIFE) as keeper:
        keeper.allow(0.05, "proposing a setting")
        assert "proposing a setting" in lost(keeper)
        wait_until(lambda: is_taken(ledger, subject), seconds=20.0)
    with pytest.raises(Fenced, match="sweep toy-1: term 1 has ended; term 2 holds the lease"):
        ledger.events.append("toy-1", "trial", {}, fence)


def test_a_command_holds_a_run_as_long_as_it_works_on_it(held: tuple[str, Ledger, Fence]) -> None:
    _, ledger, fence = held
    ledger.leases.release(fence)
    with operator_lease(ledger, fence.run, "yatt rollback of toy", life_seconds=LIFE) as lease:
        time.sleep(3 * LIFE)
        lease.check()
        with pytest.raises(LeaseHeld, match="yatt rollback of toy"):
            ledger.leases.acquire(fence.run, holder("far"), LIFE)
    assert ledger.leases.acquire(fence.run, holder("far"), LIFE).term == lease.fence.term + 1


def is_taken(ledger: Ledger, subject: str) -> bool:
    """Returns True once a process on another host has the lease."""
    try:
        ledger.leases.take(subject, holder("far"), 600)
    except LeaseHeld:
        return False
    return True


def test_opening_an_unreachable_ledger_is_retried(
    held: tuple[str, Ledger, Fence], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held[1].close()
    path = tmp_path / "ledger.db"
    away = tmp_path / "away.db"
    path.rename(away)
    beaten = threading.Event()
    keeper = keeper_of(held, wait=20.0, on_beat=lambda _: beaten.set())
    with caplog.at_level("WARNING", "yatt_core.flow"):
        keeper.start()
        wait_until(lambda: "could not be renewed: the ledger" in caplog.text, seconds=20.0)
    away.rename(path)
    assert beaten.wait(20)
    keeper.check()
    keeper.stop()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LedgerVersionError("revision 9 is not known"), "revision 9 is not known"),
        (KeyError("column"), "it could not be renewed: KeyError: 'column'"),
    ],
)
def test_a_permanent_error_is_the_reason_for_the_lost_lease(
    held: tuple[str, Ledger, Fence], monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    monkeypatch.setattr(Ledger, "open", Mock(side_effect=error))
    keeper = keeper_of(held, wait=20.0)
    keeper.start()
    assert lost(keeper) == reason
    keeper.stop()
