"""A run of a workload of one's own in this process: the product's loop, phases, recovery and ledger, and the real engine.

Only Ray and Prefect are left out, so that a driver can be killed at any named place within milliseconds. The trainer's rank
survives its driver, unless a test loses it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest import mock

import flows.train
from benchmarks.simulation.cluster import Cluster, DriverKilled
from benchmarks.simulation.drive import LEASE_SECONDS, NoReport, without_prefect_and_ray
from benchmarks.simulation.run_actors import SimulatedRunActors
from benchmarks.simulation.trace import Durations, Trace
from db.core.holder import this_process
from db.ledger import Ledger
from flows.driver.context import RunContext
from flows.driver.run_status import SessionOutcome
from flows.driver.session import DriverSession
from flows.run.creation import create_run, current_spec
from flows.run.home import Home
from flows.run.protocols import SilentObserver
from flows.run.results import RunResults, run_results
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.checkpoints.writer import CheckpointIdentity, CheckpointWriter
from yatt_core.engines.environment import environment_facts
from yatt_core.engines.registry import build_train_engine
from yatt_core.experience.prepared import prepared_is_whole
from yatt_core.input_building.settling import build_inputs
from yatt_core.keys import WorkKey, checkpoint_folder
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.protocols.receipts import (
    BatchTask,
    CheckpointReceipt,
    InputsReceipt,
    PrepareReceipt,
    RowsReceipt,
    RowsTask,
    SftReceipt,
    SyncReceipt,
    UpdateReceipt,
)
from yatt_core.run_actors.actors_state import ActorsState
from yatt_core.spec import RunSpec, load_spec


@dataclass
class Rank:
    """What lives in the trainer's process."""

    engine: TrainEngine
    writer: CheckpointWriter
    settled: bool = False


class Watcher(SilentObserver):
    """Kills the driver once, at a place: `PHASE:ITERATION` as a phase begins, `after PHASE:ITERATION` as its work is done."""

    def __init__(self, killed_at: str) -> None:
        self._killed_at = killed_at

    def reach(self, place: str) -> None:
        if place == self._killed_at:
            raise DriverKilled

    def phase_started(self, iteration: int, phase: str) -> None:
        self.reach(f"{phase}:{iteration}")


class OneRankActors(SimulatedRunActors):
    """The calls of the driver, answered by a real engine in this process."""

    def __init__(self, own: OwnRun, spec: RunSpec, term: int, branch: int, watcher: Watcher) -> None:
        super().__init__(own.cluster, spec, term)
        self._own = own
        self._branch = branch
        self._watcher = watcher

    @property
    def _rank(self) -> Rank:
        assert self._own.rank is not None, "the rank is started before it is called"
        return self._own.rank

    def _done(self, place: str, iteration: int) -> None:
        self._watcher.reach(f"after {place}:{iteration}")

    def start(self) -> tuple[str, ...]:
        self._created = () if self._own.rank is not None else ("trainer-0",)
        return self._created

    def materialise(self, tell: Any = None) -> InputsReceipt:
        return build_inputs(self._spec, self._own.folder)

    def load(self, inputs: InputsReceipt) -> ActorsState:
        folder = self._own.folder
        if self._own.rank is None:
            context = RankContext(folder, folder / inputs.folder, inputs.model_path, self._branch)
            self._own.rank = Rank(build_train_engine(self._spec, context), CheckpointWriter(folder))
            self._rank.engine.connect(0, 1, "")
            self._rank.engine.initialise()
        engine = self._rank.engine
        return ActorsState(
            trainer_version=engine.version if self._rank.settled else -1,
            trainer_key=engine.applied,
            engine_versions=(),
            checkpoint_in_flight=self._rank.writer.in_flight,
            created=self._created,
        )

    def environments(self) -> list[Mapping[str, str]]:
        return [environment_facts(self._spec)]

    def sft(self) -> SftReceipt:
        receipt = self._rank.engine.sft()
        self._rank.settled = True
        return receipt

    def prepare(self, task: BatchTask) -> PrepareReceipt:
        receipt = self._rank.engine.prepare(task)
        assert receipt is not None
        self._done("prepare", task.key.iteration)
        return receipt

    def prepared_is_whole(self, receipt: PrepareReceipt) -> bool:
        return prepared_is_whole(self._own.folder, receipt.folder, receipt.files)

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        receipt = self._rank.engine.learn(task, prepared)
        self._done("learn", task.key.iteration)
        return receipt

    def skip(self, task: BatchTask) -> UpdateReceipt:
        return self._rank.engine.skip(task)

    def evaluate_rows(self, run: str, iteration: int) -> RowsReceipt:
        receipt = self._rank.engine.evaluate(RowsTask(WorkKey(run, self._branch, iteration, "evaluate"), self._term))
        self._done("evaluate", iteration)
        return receipt

    def sync(self, version: int) -> list[SyncReceipt]:
        return []

    def check_weights(self, version: int, committed: str | None) -> None:
        assert committed in (None, self._rank.engine.weights_digest())

    def begin_checkpoint(self, run: str, audit_head: str) -> None:
        version = self._rank.engine.version
        identity = CheckpointIdentity(run, self._branch, version, self._term, self._spec.digest, "", audit_head)
        self._rank.writer.begin(
            folder=str(checkpoint_folder(self._branch, version, self._term)),
            attempt="000001",
            identity=identity,
            freeze=self._rank.engine.freeze_state,
            at_once=True,
        )
        self._done("checkpoint", version)

    def checkpoint_result(self, wait_seconds: float = 0.0) -> CheckpointReceipt | None:
        return self._rank.writer.wait(max(wait_seconds, 5.0))

    def restore(self, folder: str, manifest_sha256: str, version: int, renew: bool = False) -> None:
        verify_checkpoint(self._own.folder, folder, manifest_sha256)
        self._rank.engine.restore(self._own.folder / folder, version)
        self._rank.settled = True


@dataclass
class OwnRun:
    """One run of a workload in its own home folder."""

    home: Home
    run: str
    cluster: Cluster
    rank: Rank | None = field(default=None)

    @classmethod
    def of(cls, folder: Path, spec: Path, *overrides: str) -> OwnRun:
        home = Home(folder)
        fast = ("tracking.enabled=false", "trainer.engine.ranks=1", f"recovery.lease_seconds={LEASE_SECONDS}")
        read = load_spec(spec, [*fast, *overrides])
        run = create_run(home, read)
        trace = Trace(read.iterations, {}, Durations())
        return cls(home, run, Cluster(home.run_folder(run), trace, 1, 1, read.checkpoints.every))

    @property
    def folder(self) -> Path:
        return self.home.run_folder(self.run)

    def ledger(self) -> Ledger:
        return Ledger.open(self.home.ledger, migrate=False, clock=self.cluster.clock.time_ms)

    def results(self) -> RunResults:
        with self.ledger() as ledger:
            return run_results(ledger, self.run)

    def drive(self, killed_at: str = "", cold: bool = False) -> SessionOutcome | None:
        """Drives one session; returns None if the driver was killed. cold: the rank did not survive the previous one."""
        if cold:
            self.rank = None
        ledger = self.ledger()
        watcher = Watcher(killed_at)
        try:
            spec = current_spec(ledger, self.run)
            fence = ledger.leases.acquire(self.run, this_process(), LEASE_SECONDS, lambda holder: True)

            def actors(spec: RunSpec, run_folder: Path, term: int, branch: int, **_: object) -> OneRankActors:
                return OneRankActors(self, spec, term, branch, watcher)

            with without_prefect_and_ray(), mock.patch("flows.driver.session.RunActors", actors):
                session = DriverSession(RunContext.of(self.home, spec, ledger, fence, watcher, self.cluster.clock))
                outcome = session.already_finished() or session.obstructed()
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
