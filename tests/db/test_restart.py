"""Restarts of the database: nothing is lost or duplicated, and a stalled driver does not keep the run."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from db.core import engine
from db.core.engine import Fence
from db.core.errors import LedgerError, LedgerUnavailable
from db.ledger import Ledger
from db.write.events import append, lock_run
from tests.db.conftest import empty_address
from tests.db.tools import assert_consistent, commit_of, holder
from tests.postgresql import Server

DEADLINE_SECONDS = 60.0


@pytest.fixture
def ledger(postgresql: Server) -> Iterator[Ledger]:
    with Ledger.open(empty_address(postgresql)) as ledger:
        yield ledger


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.005)


class Driver(threading.Thread):
    """A driver that commits iterations until told to end; after an outage it continues from the state of the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self.run_id = ledger.runs.create("toy", {}, "d", 10_000).id
        self.fence = ledger.leases.acquire(self.run_id, holder(self.run_id), ttl_seconds=600)
        self.acknowledged = -1
        self.failures = 0
        self.ending = threading.Event()

    def run(self) -> None:
        lost_sight = False
        while not self.ending.is_set():
            try:
                if lost_sight:
                    self.ledger.phases.fail_open(self.fence, "the ledger was away")
                    lost_sight = False
                self.step()
            except LedgerUnavailable:
                self.failures += 1
                lost_sight = True
                time.sleep(0.01)

    def step(self) -> None:
        latest = self.ledger.commits.latest(self.run_id)
        iteration = 0 if latest is None else latest.iteration + 1
        assert iteration in (self.acknowledged + 1, self.acknowledged + 2), "an acknowledged commit was lost"
        attempt = self.ledger.phases.plan(self.fence, 0, iteration, "learn")
        self.ledger.phases.dispatch(self.fence, attempt)
        self.ledger.phases.finish(self.fence, attempt, {}, 0.1)
        self.ledger.commits.commit(self.fence, commit_of(iteration))
        self.acknowledged = iteration


def test_restarts_at_any_moment_lose_and_duplicate_nothing(postgresql: Server, ledger: Ledger) -> None:
    drivers = [Driver(ledger) for _ in range(3)]
    for driver in drivers:
        driver.start()
    try:
        for crash in (False, True, True):
            goals = [driver.acknowledged + 5 for driver in drivers]
            eventually(lambda goals=goals: all(d.acknowledged >= goal for d, goal in zip(drivers, goals, strict=True)))
            noticed = [driver.failures for driver in drivers]
            postgresql.stop(crash)
            eventually(lambda seen=noticed: all(d.failures > n for d, n in zip(drivers, seen, strict=True)))
            postgresql.start()
        goals = [driver.acknowledged + 5 for driver in drivers]
        eventually(lambda: all(d.acknowledged >= goal for d, goal in zip(drivers, goals, strict=True)))
    finally:
        for driver in drivers:
            driver.ending.set()
            driver.join()
    for driver in drivers:
        assert_consistent(ledger, driver.acknowledged + 1, driver.run_id)
        rows = [
            row for step in range(driver.acknowledged + 1) for row in ledger.phases.attempts(driver.run_id, 0, step)
        ]
        assert {row.state for row in rows} <= {"DONE", "FAILED"}


def test_a_connection_that_the_server_closed_is_replaced(postgresql: Server, ledger: Ledger) -> None:
    ledger.runs.create("toy", {}, "d", 1)
    postgresql.restart()
    assert ledger.runs.find("toy-1").id == "toy-1"
    postgresql.restart(crash=True)
    ledger.runs.create("toy", {}, "d", 1)
    assert len(ledger.runs.list()) == 2


def test_a_server_that_dies_within_a_transaction_leaves_nothing_of_it(postgresql: Server, ledger: Ledger) -> None:
    run = ledger.runs.create("toy", {}, "d", 1).id

    def note(text: str, then: Callable[[], None]) -> None:
        with ledger._database.write() as connection:
            append(connection, lock_run(connection, ledger._database, run), "note", {"text": text})
            then()
            if text == "before a statement":
                lock_run(connection, ledger._database, run)

    for text in ("before a statement", "before COMMIT"):
        with pytest.raises(LedgerUnavailable, match=r"the ledger postgresql.*connection"):
            note(text, lambda: postgresql.restart(crash=True))
    assert [link.kind for link in ledger.events.links(run)] == ["spec_revision"]
    note("whole", lambda: None)
    assert ledger.events.verify(run) is None


def test_an_unreachable_server_is_reported(postgresql: Server, ledger: Ledger) -> None:
    postgresql.stop()
    try:
        with pytest.raises(LedgerUnavailable, match="the ledger postgresql"):
            ledger.runs.list()
        with pytest.raises(LedgerUnavailable, match="the ledger postgresql"):
            Ledger.open(postgresql.dsn)
    finally:
        postgresql.start()
    assert ledger.runs.list() == ()


def test_a_driver_stalled_within_a_transaction_does_not_keep_the_run(
    postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = empty_address(postgresql)
    with Ledger.open(address) as second:
        run = second.runs.create("toy", {}, "d", 1).id
        monkeypatch.setattr(engine, "IDLE_IN_TRANSACTION_MS", 1000)
        with Ledger.open(address) as first:
            fence = first.leases.acquire(run, holder("first"), ttl_seconds=0)
            later: Fence | None = None
            with pytest.raises(LedgerUnavailable), first._database.fenced(fence) as (connection, _):
                lock_run(connection, first._database, run)
                # blocks until the server closes the first driver's connection
                later = second.leases.acquire(run, holder("second"), ttl_seconds=10)
                lock_run(connection, first._database, run)
            assert later == Fence.of_run(run, fence.term + 1)


def test_a_value_that_the_database_rejects_is_not_an_outage(ledger: Ledger) -> None:
    run = ledger.runs.create("toy", {}, "d", 1).id
    fence = ledger.leases.acquire(run, holder("first"), ttl_seconds=10)
    with pytest.raises(LedgerError, match="cannot be written to the ledger") as refused:
        ledger.runs.set_mlflow_run(fence, "a\0b")
    assert not isinstance(refused.value, LedgerUnavailable)


def test_a_locked_file_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MS", 1)
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="locked"):
            ledger.runs.create("toy", {}, "d", 1)
        other.execute("ROLLBACK")
        other.close()
        assert ledger.leases.acquire(ledger.runs.create("toy", {}, "d", 1).id, holder("me"), 10) == Fence.of_run(
            "toy-1", 1
        )
