"""The base of the state machines over the ledger: a simulated clock, drivers, and checks after every step.

A driver may be paused at any moment; when it continues, it still uses its old fence. The model knows who owns the run;
the ledger must agree with it at every write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from sqlalchemy import event

from db.core.engine import Fence
from db.core.errors import Fenced, LeaseHeld
from db.ledger import Ledger
from tests.db.tools import SimulatedClock, holder

T = TypeVar("T")
TTL = 10
DRIVERS = st.integers(0, 2)
STEPS = 30


class World(RuleBasedStateMachine):
    """A run, its drivers and the model of who may write to it. Every example has its own run in a shared ledger."""

    ledger: ClassVar[Ledger]
    clock: ClassVar[SimulatedClock]

    def __init__(self) -> None:
        super().__init__()
        self.run = self.ledger.runs.create("toy", {}, "d", 100).id
        self.fences: dict[int, Fence] = {}
        self.owner: int | None = None
        self.term = 0
        self.expires = 0
        self.links = 1

    def teardown(self) -> None:
        assert self.ledger.events.verify(self.run) is None, "the chain is broken"
        assert self.ledger.events.head(self.run).seq == self.links, "wrong number of links"

    def taken_over(self) -> None:
        """Resets, in subclasses, what a new driver cannot know; called after a takeover."""

    def write(self, driver: int, step: Callable[[Fence], T]) -> T | None:
        """Performs a driver's step; checks that it is fenced if, and only if, the driver is not the owner."""
        fence = self.fences.get(driver, Fence.of_run(self.run, 0))
        try:
            result = step(fence)
        except Fenced:
            assert self.owner != driver, "the owner was fenced"
            return None
        assert self.owner == driver, "a stale driver wrote"
        return result

    def owns(self, driver: int) -> bool:
        return self.owner == driver

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
        assert free, "two drivers hold the run"
        self.term += 1
        self.links += 1
        assert fence == Fence.of_run(self.run, self.term)
        self.owner = driver
        self.fences[driver] = fence
        self.expires = self.clock.now + TTL * 1000
        self.taken_over()

    @rule(driver=DRIVERS)
    def renew(self, driver: int) -> None:
        self.write(driver, lambda fence: self.ledger.leases.renew(fence, TTL))
        if self.owns(driver):
            self.expires = self.clock.now + TTL * 1000

    @rule(driver=DRIVERS)
    def release(self, driver: int) -> None:
        self.write(driver, self.ledger.leases.release)
        if self.owns(driver):
            self.owner = None
            self.links += 1

    @rule()
    def an_operator_notes(self) -> None:
        self.ledger.events.append(self.run, "note", {"at": self.clock.now})
        self.links += 1


def explore(machine: type[World], ledger: Ledger, clock: SimulatedClock, examples: int) -> None:
    """Tries `examples` interleavings, without fsync: no process is killed here, and syncing would dominate the time."""
    engine = ledger._database.engine
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _without_sync)
        engine.dispose()
    own = type(machine.__name__, (machine,), {"ledger": ledger, "clock": clock})
    limits = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(own, settings=limits)


def _without_sync(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")
