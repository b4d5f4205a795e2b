"""The product's own loop, phases, recovery and ledger on a simulated cluster, in this process and in simulated time.

A driver may be killed at a named place; the next one takes over what the cluster and the ledger hold. Uses the parts of
`benchmarks.simulation`, extended here by branches and by metrics of updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import flows.train
from benchmarks.simulation.cluster import Cluster, DriverKilled, Publication, Trainer
from benchmarks.simulation.drive import LEASE_SECONDS, NoReport, without_prefect_and_ray
from benchmarks.simulation.run_actors import SimulatedRunActors
from benchmarks.simulation.trace import ENGINE, TRAINER, Durations, Trace
from db.core.holder import this_process
from db.ledger import Ledger
from flows.driver.context import RunContext
from flows.driver.run_status import SessionOutcome
from flows.driver.session import DriverSession
from flows.run.creation import create_run, current_spec
from flows.run.home import Home
from flows.run.protocols import IterationSummary, SilentObserver
from tests.faults import is_not_finite
from tests.services import ROOT
from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.errors import NumericError
from yatt_core.keys import checkpoint_folder
from yatt_core.placement.seen import RuntimePolicy
from yatt_core.protocols.receipts import BatchTask, InputsReceipt, PrepareReceipt, PromptPool, UpdateReceipt
from yatt_core.spec import RunSpec, load_spec

ENGINES = 1
SHARDS = 4
POOL_SIZE = 12


class MetricCluster(Cluster):
    """A cluster whose updates have a gradient norm between 0 and 4 that is determined by the weights."""

    def _apply(self, task: BatchTask) -> None:
        super()._apply(task)
        receipt = self.trainer.receipt
        assert receipt is not None
        self.trainer.receipt = replace(receipt, metrics={"loss": 0.0, "grad_norm": self.trainer.state[0] / 64})


class BranchRunActors(SimulatedRunActors):
    """Run actors that are new whenever the branch changes. Updates named by a test are non-finite.

    kept: the instances that the dispatcher keeps free of work.
    """

    def __init__(self, cluster: Cluster, spec: RunSpec, folder: Path, term: int, branch: int) -> None:
        super().__init__(cluster, spec, term)
        self.kept: tuple[int, ...] = ()
        self._branch = branch
        self._folder = folder
        if branch != getattr(cluster.trainer, "branch", branch):
            cluster.trainer = BranchTrainer(branch)
            cluster.collection = None
            cluster.lost |= {TRAINER, ENGINE}
        elif not isinstance(cluster.trainer, BranchTrainer):
            cluster.trainer = BranchTrainer(branch)

    def materialise(self, say: Callable[[str], None]) -> InputsReceipt:
        data = self._spec.data
        pools = tuple(PromptPool(name, source, POOL_SIZE) for source, name in enumerate(data.source_names))
        return replace(super().materialise(say), pools=pools if data.curriculum else ())

    def place(self, roles: str, runtime_policy: RuntimePolicy) -> None:
        super().place(roles, runtime_policy)
        self.kept = ()

    def keep_instances(self, instances: Sequence[int]) -> None:
        self.kept = tuple(instances)

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        if is_not_finite(self._folder, task.key.branch, task.key.iteration):
            raise NumericError(f"{task.key}: the loss is nan")
        return super().learn(task, prepared)

    def skip(self, task: BatchTask) -> UpdateReceipt:
        trainer = self._cluster.trainer
        trainer.version = task.key.iteration
        fingerprint: dict[str, float | str] = {"skipped": 1.0, "weights_digest": trainer.state.hex()}
        trainer.receipt = UpdateReceipt(task.key, trainer.version, {}, fingerprint, {})
        return trainer.receipt

    def copy_ahead(self, version: int) -> None:
        assert self._cluster.trainer.version == version

    def begin_checkpoint(self, run: str, audit_head: str) -> None:
        cluster = self._cluster
        trainer = self._cluster.trainer
        digest = trainer.state.hex()
        identity = CheckpointIdentity(
            run, self._branch, trainer.version, self._term, self._spec.digest, digest, audit_head
        )
        folder = str(checkpoint_folder(self._branch, trainer.version, self._term))
        trainer.publication = Publication(identity, folder, trainer.state, cluster.trace.durations.publish)


class BranchTrainer(Trainer):
    """A trainer that knows the branch of its actors."""

    def __init__(self, branch: int) -> None:
        super().__init__()
        self.branch = branch


class Watcher(SilentObserver):
    """Kills the driver once, at a place; keeps warnings."""

    def __init__(self, cluster: Cluster, killed_at: str) -> None:
        self._cluster = cluster
        self._killed_at = killed_at
        self.warnings = list[str]()
        self.targets = list[int]()

    def reach(self, place: str) -> None:
        if place == self._killed_at:
            raise DriverKilled

    def phase_started(self, iteration: int, phase: str) -> None:
        if phase == "place":
            self._cluster.iteration_begins(iteration)
        self.reach(f"{phase}:{iteration}")

    def committed(self, summary: IterationSummary) -> None:
        self.targets.append(summary.target)
        self.reach(f"committed:{summary.iteration}")

    def warned(self, text: str) -> None:
        self.warnings.append(text)


@dataclass
class Simulation:
    """One run in its own folder."""

    home: Home
    run: str
    cluster: MetricCluster
    watcher: Watcher | None = None

    @classmethod
    def of(cls, folder: Path, *overrides: str) -> Simulation:
        home = Home(folder)
        fast = ("tracking.enabled=false", "evaluation.every=0", f"recovery.lease_seconds={LEASE_SECONDS}")
        spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", [*fast, *overrides])
        run = create_run(home, spec)
        trace = Trace(spec.iterations, {}, Durations())
        return cls(home, run, MetricCluster(home.run_folder(run), trace, SHARDS, ENGINES, spec.checkpoints.every))

    def ledger(self) -> Ledger:
        return Ledger.open(self.home.ledger, migrate=False, clock=self.cluster.clock.time_ms)

    def drive(self, killed_at: str = "", cold: bool = False, until: int | None = None) -> SessionOutcome | None:
        """Drives one session; returns None if the driver was killed. cold: no actor survived the previous one."""
        if cold:
            self.cluster.trainer = Trainer()
            self.cluster.lost = {TRAINER, ENGINE}
        ledger = self.ledger()
        self.watcher = watcher = Watcher(self.cluster, killed_at)
        try:
            spec = current_spec(ledger, self.run)
            fence = ledger.leases.acquire(self.run, this_process(), LEASE_SECONDS, lambda holder: True)

            def actors(spec: RunSpec, run_folder: Path, term: int, branch: int, **_: object) -> BranchRunActors:
                watcher.reach(f"branch:{branch}")
                return BranchRunActors(self.cluster, spec, run_folder, term, branch)

            with without_prefect_and_ray(), mock.patch("flows.driver.session.RunActors", actors):
                clock = self.cluster.clock
                session = DriverSession(RunContext.of(self.home, spec, ledger, fence, watcher, clock), until=until)
                outcome = session.already_finished() or session.reached_until() or session.obstructed()
                if outcome is None:
                    session.book("", "")
                    outcome = flows.train.drive(session, cast(Any, NoReport()))
                    session.end("ended")
            return outcome
        except DriverKilled:
            ledger.leases.renew(fence, LEASE_SECONDS)  # as the driver's lease keeper would have done until now
            return None
        finally:
            ledger.close()
