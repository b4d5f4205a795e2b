"""Drivers without processes: they take leases, commit and stop in a real ledger, one step at a time, under a simulated clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from db.core.engine import Fence
from db.core.queue_rows import AllocationRow
from db.ledger import Ledger
from db.write.lease import ENDED
from db.write.metrics import Metric
from db.write.queueing import Submission
from db.write.waits import WaitRow
from flows.queueing.limits import Stretch, violations
from flows.queueing.pools_file import pools_file, read_pools
from flows.queueing.scheduler import LIFE_SECONDS, Scheduler
from flows.run.home import Home
from flows.run.lease import DRIVER
from tests.db.tools import SimulatedClock, commit_of, holder
from tests.services import ROOT
from yatt_core.errors import InfrastructureError
from yatt_core.spec import load_spec
from yatt_core.spec.reading.documents import yaml_text

STEP_SECONDS = 60.0
LEASE_SECONDS = 2.5 * STEP_SECONDS
POOLS = {
    "pools": {
        "main": {"devices": 4, "price": {"currency": "EUR", "per_device_hour": 2.0}},
        "spot": {"devices": 2, "spot": True, "price": {"currency": "EUR", "per_device_hour": 1.0}},
    },
    "protected_minutes": 0,
}


@dataclass
class Driver:
    """One driver; it takes the lease in its first step, and a step is an iteration."""

    run: str
    gpus: tuple[int, ...] | None
    fence: Fence | None = None


@dataclass
class SimulatedDrivers:
    """All drivers of a home.

    never: runs whose drivers end before they take the lease.
    refused: runs whose drivers the system does not start.
    """

    ledger: Ledger
    alive: dict[int, Driver] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    never: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def start(self, run: str, gpus: tuple[int, ...] | None, until: int | None = None) -> tuple[int, int]:
        self.started.append(run)
        if run in self.refused:
            raise InfrastructureError(f"run {run}: its driver cannot be started: no space")
        pid = len(self.started)
        self.alive[pid] = Driver(run, gpus)
        return pid, pid

    def is_alive(self, pid: int, process_start: int) -> bool:
        return pid in self.alive

    def of(self, run: str) -> list[int]:
        return [pid for pid, driver in self.alive.items() if driver.run == run]

    def kill(self, run: str) -> None:
        """Kills a run's drivers; their lease expires."""
        for pid in self.of(run):
            self.alive.pop(pid)

    def step(self) -> None:
        for pid, driver in list(self.alive.items()):
            if driver.run in self.never or not self._step(driver, pid):
                self.alive.pop(pid, None)

    def give_back(self, run: str, dependency: str) -> None:
        """Has a run's driver wait for something without devices."""
        (pid,) = self.of(run)
        fence = self.alive[pid].fence
        assert fence is not None
        now = self.ledger.overview.line(run).run.created_at
        self.ledger.waits.record(fence, WaitRow(run, dependency, "status 503", now, now, 1, returned_at=now))
        self.ledger.runs.set_state(fence, "waiting", dependency)

    def come_back(self, run: str) -> bool:
        """Has a run's driver take devices again; returns False, and ends it, if it must get others from the queue."""
        (pid,) = self.of(run)
        fence = self.alive[pid].fence
        assert fence is not None
        if taken := self.ledger.waits.take_devices(fence):
            self.ledger.waits.over(fence)
            self.ledger.runs.set_state(fence, "running")
        else:
            self._end(self.alive.pop(pid), "stopped", "the run waits in the queue for devices")
        return taken

    def end(self, run: str, state: str, reason: str = "") -> None:
        """Ends a run's session in order."""
        (pid,) = self.of(run)
        self._end(self.alive.pop(pid), state, reason)

    def _step(self, driver: Driver, pid: int) -> bool:
        row = self.ledger.runs.find(driver.run)
        if driver.fence is None:
            own = holder(f"{DRIVER}{driver.run}", pid)
            driver.fence = self.ledger.leases.acquire(
                driver.run, own, LEASE_SECONDS, lambda other: other.pid not in self.alive
            )
            self.ledger.leases.start_session(driver.fence, f"flow-{pid}", f"flow-{pid}")
            self.ledger.runs.set_state(driver.fence, "running")
            return True
        if row.desired_state == "stop" or row.iteration >= row.target_iterations:
            self._end(driver, "completed" if row.iteration >= row.target_iterations else "stopped")
            return False
        self.ledger.leases.renew(driver.fence, LEASE_SECONDS)
        if self.ledger.waits.of([driver.run]):
            return True
        points = [Metric("seconds/iteration", STEP_SECONDS, "timing")]
        self.ledger.commits.commit(driver.fence, commit_of(row.iteration + 1, metrics=points))
        return True

    def _end(self, driver: Driver, state: str, reason: str = "") -> None:
        assert driver.fence is not None
        self.ledger.runs.set_state(driver.fence, state, reason)
        self.ledger.leases.end_session(driver.fence, ENDED)
        self.ledger.leases.release(driver.fence)


def stretch_of(row: AllocationRow) -> Stretch:
    """Returns a stretch from the ledger, in seconds since 1970."""
    ended = None if row.ended_at is None else row.ended_at / 1000
    return Stretch(row.run, row.pool, row.owner, row.project, row.numbers, row.started_at / 1000, ended)


class Killed(BaseException):
    """The scheduler dies here."""


class World:
    """A home with pools, a ledger, drivers, and schedulers one after another."""

    def __init__(self, folder: Path, tree: dict[str, object] | None = None) -> None:
        self.home = Home(folder)
        self.clock = SimulatedClock()
        folder.mkdir(parents=True, exist_ok=True)
        pools_file(self.home).write_text(yaml_text(tree or POOLS))
        self.ledger = Ledger.open(folder / "ledger.db", clock=self.clock)
        self.drivers = SimulatedDrivers(self.ledger)
        self.deaths = 0
        self.scheduler = self.elect()

    def elect(self) -> Scheduler:
        """Returns a new scheduler; the last one's lease has expired."""
        self.clock.advance(LIFE_SECONDS + 1.0)
        scheduler = Scheduler(self.home, self.ledger, self.drivers)
        scheduler.lead()
        return scheduler

    def submit(
        self,
        devices: int = 2,
        priority: int = 0,
        iterations: int = 4,
        pools: tuple[str, ...] = ("main",),
        owner: str = "ada",
        name: str = "toy",
        checkpoints: str = "spec",
    ) -> str:
        overrides = [f"name={name}", f"iterations={iterations}"]
        spec = load_spec(ROOT / "configs" / "virtual.yaml", overrides)
        run = self.ledger.runs.create(name, spec.model_dump(mode="json"), spec.digest, iterations).id
        self.ledger.submissions.submit(run, Submission(pools, owner, "chat", priority, devices, checkpoints), owner)
        return run

    def round(self) -> None:
        """One round of the scheduler, which another one replaces if it dies, and a step of all drivers."""
        try:
            self.scheduler.round()
        except Killed:
            self.deaths += 1
            self.scheduler = self.elect()
        self.check()
        self.drivers.step()
        self.clock.advance(STEP_SECONDS)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def finish(self, most: int = 60) -> None:
        """Goes on until no run is left in the queue."""
        for _ in range(most):
            if not self.ledger.queue.rows().open:
                return
            self.round()
        raise AssertionError(f"not ended: {self.ledger.queue.rows().open}")

    def check(self) -> None:
        """Checks in the ledger that no device was held twice and no limit exceeded, and that no run has two drivers."""
        stretches = [stretch_of(row) for row in self.ledger.queue.allocations()]
        assert list(violations(read_pools(self.home), stretches)) == []

    def held(self) -> dict[str, str]:
        return {row.run: f"{row.pool}:{row.devices}" for row in self.ledger.queue.rows().held}

    def outcome(self, run: str) -> str | None:
        entry = self.ledger.queue.entry(run)
        assert entry is not None
        return entry.outcome

    def outcomes(self, run: str) -> list[str | None]:
        return [row.outcome for row in self.ledger.queue.allocations(runs=[run])]
