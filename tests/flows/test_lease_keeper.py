"""The lease's keeper: renews, notices a takeover, and trusts its own clock when it cannot renew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.engine import Fence
from db.holder import this_process
from db.ledger import Ledger
from flows.lease import LeaseKeeper
from yatt_core.errors import FencedError

LIFE = 0.5


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[str, Ledger, Fence]]:
    address = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(address) as ledger:
        run = ledger.runs.create("toy", {}, "digest", 1).id
        yield address, ledger, ledger.leases.acquire(run, this_process(), LIFE)


def test_a_kept_lease_outlives_its_own_life(held: tuple[str, Ledger, Fence]) -> None:
    address, _, fence = held
    keeper = LeaseKeeper(address, fence, LIFE)
    keeper.start()
    time.sleep(3 * LIFE)
    keeper.check()
    keeper.stop()


def test_a_takeover_is_noticed(held: tuple[str, Ledger, Fence]) -> None:
    address, ledger, fence = held
    keeper = LeaseKeeper(address, fence, LIFE)
    ledger.leases.acquire(fence.run, this_process("another"), LIFE, holder_is_gone=lambda holder: True)
    keeper.start()
    deadline = time.monotonic() + 10
    with pytest.raises(FencedError):
        while time.monotonic() < deadline:
            keeper.check()
            time.sleep(0.01)
    keeper.stop()


def test_a_driver_that_was_stopped_and_continued_knows_by_its_own_clock(held: tuple[str, Ledger, Fence]) -> None:
    """Nobody renews (the thread was stopped with the process); the database is not asked."""
    address, ledger, fence = held
    keeper = LeaseKeeper(address, fence, LIFE)
    keeper.check()
    ledger.close()
    time.sleep(LIFE + 0.1)
    with pytest.raises(FencedError, match="ran out"):
        keeper.check()
