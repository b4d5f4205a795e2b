"""A ledger in an SQLite file with a clock that stands still until a test moves it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.engine import Fence
from db.ledger import Ledger
from tests.db.tools import SimulatedClock, holder


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger made once; copying it is quicker than migrating."""
    path = tmp_path_factory.mktemp("ledger") / "empty.sqlite"
    Ledger.open(path).close()
    return path


@pytest.fixture
def address(tmp_path: Path, empty_ledger: Path) -> str | Path:
    return shutil.copy(empty_ledger, tmp_path / "ledger.sqlite")


@pytest.fixture
def ledger(address: str | Path, clock: SimulatedClock) -> Iterator[Ledger]:
    with Ledger.open(address, clock=clock) as ledger:
        yield ledger


@pytest.fixture
def run(ledger: Ledger) -> str:
    return ledger.runs.create("toy", {"seed": 0}, "digest", target_iterations=100).id


@pytest.fixture
def fence(ledger: Ledger, run: str) -> Fence:
    return ledger.leases.acquire(run, holder("first"), ttl_seconds=10)
