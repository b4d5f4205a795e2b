"""Drives a simulated run with the product's own loop, phases, recovery, accounts and ledger, one driver after another.

Tasks are called without Prefect, since there is nothing to schedule. The ledger is a real one on simulated time, in
memory-backed files if the system has them, since disk time is not part of simulated time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

from prefect import Task

import flows.phases.ahead
import flows.phases.recovery
import flows.phases.rows
import flows.phases.tasks
import flows.train
from benchmarks.simulation.cluster import Cluster, DriverKilled
from benchmarks.simulation.run_actors import SimulatedRunActors
from benchmarks.simulation.trace import Trace
from db.core.holder import this_process
from db.ledger import Ledger
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.reports.accounting import Accounts, accounts_of
from flows.reports.advice import Advice, advise
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.protocols import SilentObserver
from yatt_core.cluster.devices import Device
from yatt_core.run_actors.run_actors import RunActors
from yatt_core.spec import RunSpec, parse_spec

DEVICES = 64
ENGINES = 16
RANKS = 64
SHARDS = 16
MEMORY_FILES = Path("/dev/shm")
LEASE_SECONDS = 1e6
"""The thread that renews the lease has no part in simulated time: the lease outlasts the run, and the lease of a lost
driver is taken over at once.
"""


@dataclass(frozen=True, slots=True)
class Driven:
    """The result of a simulated run."""

    wall_seconds: float
    drivers: int
    weights_digest: str
    struck: int
    accounts: Accounts
    advice: Advice


class Watcher(SilentObserver):
    """An observer that tells the cluster when an iteration begins."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def phase_started(self, iteration: int, phase: str) -> None:
        """Arms an iteration's fault at its first phase."""
        if phase == "place":
            self._cluster.iteration_begins(iteration)


class NoReport:
    """A stand-in for the report to Prefect."""

    def before(self, state: object) -> None:
        """Does nothing."""

    def after(self, state: object) -> None:
        """Does nothing."""


def simulated_spec(trace: Trace, every: int) -> RunSpec:
    """Returns a spec with one prompt per shard, and default budgets and limits."""
    engine = {"kind": "virtual", "clock_factor": 1e9}
    return parse_spec(
        {
            "name": "simulated",
            "iterations": trace.iterations,
            "data": {
                "sources": [{"kind": "reasoning_gym", "task": "spell_backward", "size": 200}],
                "held_out": 20,
                "probe": 20,
                "prompts_per_iteration": SHARDS,
                "logical_shards": SHARDS,
            },
            "rollout": {"engine": {**engine, "instances": ENGINES}},
            "trainer": {"engine": {**engine, "ranks": RANKS}},
            "rewards": {"parts": [{"name": "virtual", "function": "virtual_score"}], "correct_at": 0.5},
            "checkpoints": {"every": every},
            "evaluation": {"every": 0},
            "tracking": {"enabled": False},
            "retention": {"experience": "needed"},
            "recovery": {"lease_seconds": LEASE_SECONDS},
        },
        "the simulated run",
    )


def drive(trace: Trace, every: int) -> Driven:
    """Drives a run to its end with a checkpoint every `every` iterations."""
    where = MEMORY_FILES if os.access(MEMORY_FILES, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="yatt-simulated-", dir=where) as folder, without_prefect_and_ray():
        home = Home(Path(folder))
        spec = simulated_spec(trace, every)
        run = create_run(home, spec)
        cluster = Cluster(folder=home.run_folder(run), trace=trace, shards=SHARDS, engines=ENGINES, every=every)
        drivers = 1
        while not _driven(home, run, spec, cluster):
            drivers += 1
            cluster.spend(trace.durations.reload_driver)
        with Ledger.open(home.ledger, migrate=False) as ledger:
            history = ledger.overview.history(run)
            accounts = accounts_of(history)
            advice = advise(history, accounts, every)
        digest = cluster.trainer.state.hex()
        return Driven(
            wall_seconds=cluster.clock.seconds,
            drivers=drivers,
            weights_digest=digest,
            struck=len(cluster.struck),
            accounts=accounts,
            advice=advice,
        )


def _driven(home: Home, run: str, spec: RunSpec, cluster: Cluster) -> bool:
    """Runs one driver until it ends; returns False if it was killed."""
    ledger = Ledger.open(home.ledger, migrate=False, clock=cluster.clock.time_ms)
    try:
        fence = ledger.leases.acquire(run, this_process(), LEASE_SECONDS, lambda holder: True)
        actors = cast(RunActors, SimulatedRunActors(cluster, spec, fence.term))
        session = DriverSession(
            RunContext.of(
                home=home, spec=spec, ledger=ledger, fence=fence, observer=Watcher(cluster), clock=cluster.clock
            ),
            actors=actors,
        )
        session.book("", "")
        try:
            flows.train.drive(session, cast(Any, NoReport()))
        except DriverKilled:
            # The thread that renews the lease would have done this every other second until now.
            ledger.leases.renew(fence, LEASE_SECONDS)
            return False
        session.end("ended")
        return True
    finally:
        ledger.close()


@contextmanager
def without_prefect_and_ray() -> Iterator[None]:
    """Replaces the phases by plain functions, and Ray's devices by simulated ones."""
    devices = tuple(
        Device(index=i, kind="gpu", node=f"node-{i // 8}", name=f"node-{i // 8}:gpu{i % 8}", model="H100")
        for i in range(DEVICES)
    )
    with ExitStack() as stack:
        for module in (flows.train, flows.phases.ahead, flows.phases.tasks, flows.phases.recovery, flows.phases.rows):
            for name, value in list(vars(module).items()):
                if isinstance(value, Task):
                    stack.enter_context(mock.patch.object(module, name, value.fn))
        stack.enter_context(mock.patch("flows.driver.actors_start.inventory", lambda: devices))
        yield
