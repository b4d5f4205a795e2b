"""A state machine over lease, phases, commits and outbox: any order of three drivers' steps keeps the promises."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from db.engine import Fence
from db.errors import AlreadyCommitted, Fenced, LeaseHeld, OutOfOrder
from db.ledger import Ledger
from db.phases import Attempt
from tests.db.tools import SimulatedClock, commit_of, holder

TTL = 10
DRIVERS = st.integers(0, 2)


class Drivers(RuleBasedStateMachine):
    """The model: who holds the lease until when, what was committed, charged and delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="yatt-ledger-"))
        self.clock = SimulatedClock()
        self.ledger = Ledger.open(self.folder / "ledger.sqlite", clock=self.clock)
        self.run = self.ledger.runs.create("toy", {}, "d", 100).id
        self.fences: dict[int, Fence] = {}
        self.attempts: dict[int, Attempt] = {}
        self.owner: int | None = None
        self.epoch = 0
        self.expires = 0
        self.committed: list[int] = []
        self.charged = 0
        self.delivered: list[str] = []
        self.claimed: dict[int, list[str]] = {}

    def teardown(self) -> None:
        assert self.ledger.events.verify(self.run) is None
        self.ledger.close()
        shutil.rmtree(self.folder)

    def write(self, driver: int, step: Callable[[Fence], Any]) -> Any:
        """Does a driver's step and checks that it is fenced exactly if it is not the owner."""
        fence = self.fences.get(driver, Fence(self.run, 0))
        try:
            result = step(fence)
        except Fenced:
            assert self.owner != driver
            return None
        assert self.owner == driver, "a stale driver wrote"
        return result

    @rule(seconds=st.sampled_from([0.5, 3, 9.9, 11]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(driver=DRIVERS, gone=st.booleans())
    def acquire(self, driver: int, gone: bool) -> None:
        free = self.owner is None or self.clock.now >= self.expires or gone
        try:
            fence = self.ledger.leases.acquire(self.run, holder(str(driver)), TTL, holder_is_gone=lambda _: gone)
        except LeaseHeld as held:
            assert not free
            assert held.expires_in == (self.expires - self.clock.now) / 1000
            return
        assert free
        self.epoch += 1
        assert fence.epoch == self.epoch
        self.owner, self.fences[driver], self.expires = driver, fence, self.clock.now + TTL * 1000
        self.attempts.clear()

    @rule(driver=DRIVERS)
    def renew(self, driver: int) -> None:
        self.write(driver, lambda fence: self.ledger.leases.renew(fence, TTL))
        if self.owner == driver:
            self.expires = self.clock.now + TTL * 1000

    @rule(driver=DRIVERS)
    def release(self, driver: int) -> None:
        self.write(driver, self.ledger.leases.release)
        if self.owner == driver:
            self.owner = None

    @rule(driver=DRIVERS, offset=st.sampled_from([-1, 0, 0, 0, 1]))
    def commit(self, driver: int, offset: int) -> None:
        iteration = len(self.committed) + offset
        try:
            self.write(driver, lambda fence: self.ledger.commits.commit(fence, commit_of(iteration)))
        except AlreadyCommitted:
            assert self.owner == driver
            assert offset == -1
            return
        except OutOfOrder:
            assert self.owner == driver
            assert offset == 1
            return
        if self.owner == driver:
            assert offset == 0
            self.committed.append(iteration)
            self.expires = self.clock.now + TTL * 1000

    @rule(driver=DRIVERS)
    def dispatch(self, driver: int) -> None:
        def step(fence: Fence) -> Attempt:
            attempt = self.ledger.phases.plan(fence, 0, 0, "collect")
            self.ledger.phases.dispatch(fence, attempt)
            return attempt

        attempt = self.write(driver, step)
        if attempt is not None:
            self.charged += 1
            assert attempt.number == self.charged
            self.attempts[driver] = attempt

    @precondition(lambda self: self.owner in self.attempts)
    @rule()
    def finish(self) -> None:
        attempt = self.attempts.pop(self.owner)  # type: ignore[arg-type]
        self.ledger.phases.fail(self.fences[self.owner], attempt, "infrastructure", "lost")  # type: ignore[index]

    @rule(driver=DRIVERS, limit=st.integers(1, 3))
    def claim(self, driver: int, limit: int) -> None:
        rows = self.write(driver, lambda fence: self.ledger.outbox.claim(fence, limit))
        if rows is not None:
            mine = self.claimed.setdefault(self.epoch, [])
            assert not {row.id for row in rows} & {*mine, *self.delivered}, "handed out twice in an epoch"
            mine.extend(row.id for row in rows)

    @rule(driver=DRIVERS)
    def deliver(self, driver: int) -> None:
        open_rows = [name for name in self.claimed.get(self.epoch, []) if name not in self.delivered][:1]
        if open_rows:
            self.write(driver, lambda fence: self.ledger.outbox.delivered(fence, open_rows))
            if self.owner == driver:
                self.delivered.extend(open_rows)

    @invariant()
    def what_was_acknowledged_stays(self) -> None:
        latest = self.ledger.commits.latest(self.run)
        assert (-1 if latest is None else latest.iteration) == len(self.committed) - 1
        assert [step for step, _ in self.ledger.metrics.history(self.run, "reward")] == self.committed
        assert self.ledger.outbox.counts(self.run) == (len(self.committed) - len(self.delivered), len(self.delivered))
        assert len(set(self.delivered)) == len(self.delivered)
        failed = self.ledger.phases.charged(self.run, 0, 0, "collect").get("infrastructure", 0)
        open_attempts = sum(row.ended_at is None for row in self.ledger.phases.attempts(self.run, 0, 0))
        assert failed + open_attempts == self.charged


Drivers.TestCase.settings = settings(
    max_examples=12, stateful_step_count=30, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
TestDrivers = Drivers.TestCase
