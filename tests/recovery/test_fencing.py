"""Two drivers of one run, stopped and continued: one works, the other exits, and nothing is written twice."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from db.write.lease import DRIVER_LOST
from tests.flows.runs.test_exact import check_each_point_once
from tests.flows.tools import Driver, same_result
from tests.recovery.conftest import Bed
from tests.recovery.nursery import Incarnation
from tests.recovery.test_sweep import check_the_ledger, published_twice
from yatt_core.errors import ExitCode

SECONDS = 90.0
LEASE = 1.0
SLOW = ("rollout.engine.base_seconds=0.03", f"recovery.lease_seconds={LEASE}", "iterations=6")


class Drivers:
    """The drivers of one run, of which at most one may work."""

    def __init__(self, driver: Driver, bed: Bed, run: str) -> None:
        self._driver = driver
        self._bed = bed
        self._run = run

    def start(self) -> Incarnation:
        return self._bed.nursery.start(self._driver.folder, self._run)

    def term(self) -> int:
        with self._driver.ledger() as ledger:
            return max((session.term for session in ledger.overview.show(self._run).sessions), default=0)

    def await_commit_after(self, iteration: int) -> int:
        """Waits for a commit after an iteration; returns the last committed iteration."""
        return self._await(lambda: self._iteration() if self._iteration() > iteration else None)

    def stop(self, holder: Incarnation) -> None:
        """Stops a driver, but not within a transaction, because it would keep SQLite's lock until it is continued."""
        path = self._driver.folder / "ledger.db"
        while True:
            holder.signal(signal.SIGSTOP)
            while not is_stopped(holder.pid):  # a thread in the middle of a system call may still take the lock
                time.sleep(0.001)
            with closing(sqlite3.connect(path, timeout=0.1, isolation_level=None)) as connection:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute("ROLLBACK")
                except sqlite3.OperationalError:
                    holder.signal(signal.SIGCONT)
                    time.sleep(0.01)
                else:
                    return

    def take_over(self) -> Incarnation:
        """Starts drivers until one has the lease; the others must exit with code 3."""
        before = self.term()
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            successor = self.start()
            while successor.ended() is None and self.term() == before:
                time.sleep(0.02)
            if successor.ended() is None:
                return successor
            assert successor.ended() == ExitCode.LEASE_HELD, successor.output
        raise AssertionError(f"nobody took over:\n{successor.output}")

    def _iteration(self) -> int:
        with self._driver.ledger() as ledger:
            return ledger.runs.find(self._run).iteration

    def _await(self, value: Callable[[], int | None]) -> int:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            found = value()
            if found is not None:
                return int(found)
            time.sleep(0.02)
        raise AssertionError(f"{self._run}: no progress")


def is_stopped(pid: int) -> bool:
    """Returns whether every thread of a process is stopped."""
    states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state in "Tt" for state in states)


@pytest.mark.verify
@pytest.mark.timeout(400)
def test_stopped_and_continued_drivers_never_work_side_by_side(driver: Driver, bed: Bed) -> None:
    quiet = driver.create("virtual.yaml", *SLOW)
    struck = driver.create("virtual.yaml", *SLOW)
    assert bed.nursery.start(driver.folder, quiet).wait(SECONDS) == 0
    (bed.failpoints / "published").unlink(missing_ok=True)

    drivers = Drivers(driver, bed, struck)
    holder = one_of_two(drivers.start(), drivers.start())
    reached = -1
    for _ in range(3):
        reached = drivers.await_commit_after(reached)
        drivers.stop(holder)
        successor = drivers.take_over()
        holder.signal(signal.SIGCONT)
        assert holder.wait(SECONDS) == ExitCode.LEASE_HELD, holder.output
        holder = successor
    assert holder.wait(SECONDS) == 0, holder.output

    assert same_result(driver.results(struck), driver.results(quiet))
    check_the_ledger(driver, struck)
    check_each_point_once(driver, struck)
    check_committed_once(driver, struck)
    check_no_actor_was_lost(driver, struck)
    assert not published_twice(bed.failpoints / "published")


def one_of_two(one: Incarnation, other: Incarnation) -> Incarnation:
    """Waits until one of two drivers exits with code 3; returns the other, which must be working."""
    deadline = time.monotonic() + SECONDS
    while one.ended() is None and other.ended() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    gone, holder = (one, other) if one.ended() is not None else (other, one)
    assert gone.ended() == ExitCode.LEASE_HELD, gone.output
    assert holder.ended() is None, holder.output
    return holder


def check_committed_once(driver: Driver, run: str) -> None:
    """Requires one commit per iteration in the audit chain, which would still show an overwritten row."""
    with driver.ledger() as ledger:
        commits = [link.body["iteration"] for link in ledger.events.links(run) if link.kind == "commit"]
    assert commits == sorted(set(commits))


def check_no_actor_was_lost(driver: Driver, run: str) -> None:
    """Requires that a fenced driver took no actor down, because its successor has attached to them."""
    with driver.ledger() as ledger:
        failed = {
            attempt.reason
            for iteration in range(ledger.runs.find(run).iteration + 1)
            for attempt in ledger.phases.attempts(run, 0, iteration)
            if attempt.state == "FAILED"
        }
    assert failed <= {DRIVER_LOST}, failed
