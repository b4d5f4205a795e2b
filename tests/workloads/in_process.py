"""A run of a workload of one's own in this process: the product's loop, phases, recovery and ledger, and the real engine.

Only Ray and Prefect are left out, so that a driver can be killed at any named place within milliseconds. The trainer's ranks,
each with a thread of its own, and the samplers survive their driver, unless a test loses them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest import mock

import flows.train
from benchmarks.simulation.cluster import Cluster, DriverKilled
from benchmarks.simulation.drive import LEASE_SECONDS, NoReport, without_prefect_and_ray
from benchmarks.simulation.run_actors import SimulatedRunActors
from benchmarks.simulation.trace import Durations, Trace
from db.core.holder import this_process
from db.ledger import Ledger
from flows.branching.branches import revise
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
from yatt_core.engines.rectangles import part_digests
from yatt_core.engines.registry import build_rollout_engine, build_train_engine
from yatt_core.engines.rollout.workload.engine import WorkloadSampler
from yatt_core.engines.train.ranks.rendezvous import LOOPBACK, hold_address
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
    SampleTask,
    SftReceipt,
    ShardRef,
    SyncReceipt,
    UpdateReceipt,
)
from yatt_core.run_actors.actors_state import ActorsState
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.weights import type_sent

R = TypeVar("R")


@dataclass
class Rank:
    """What lives in the process of one of the trainer's ranks, whose calls all come from one thread."""

    engine: TrainEngine
    writer: CheckpointWriter
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))


@dataclass
class Group:
    """The trainer's ranks."""

    ranks: list[Rank]
    settled: bool = False

    @classmethod
    def of(cls, spec: RunSpec, folder: Path, context: RankContext) -> Group:
        """Returns ranks that have met and hold version 0."""
        count = spec.trainer.engine.ranks
        group = cls([Rank(build_train_engine(spec, context), CheckpointWriter(folder)) for _ in range(count)])
        address = hold_address(LOOPBACK) if count > 1 else ""
        places = [
            rank.thread.submit(rank.engine.connect, number, count, address) for number, rank in enumerate(group.ranks)
        ]
        for place in places:
            place.result(timeout=60)
        group.all(lambda rank: rank.engine.initialise())
        return group

    @property
    def engine(self) -> TrainEngine:
        """That of rank 0."""
        return self.ranks[0].engine

    def all(self, call: Callable[[Rank], R]) -> list[R]:
        """Returns the results of a call to all ranks, in their order."""
        calls = [rank.thread.submit(call, rank) for rank in self.ranks]
        return [each.result(timeout=60) for each in calls]


class Watcher(SilentObserver):
    """Kills the driver once, at a place: `PHASE:ITERATION` as a phase begins, `after PHASE:ITERATION` as its work is done.

    With samplers, also `sampled:SHARD:ITERATION`, as a shard is sealed and others are not.
    """

    def __init__(self, killed_at: str, warnings: list[str]) -> None:
        self._killed_at = killed_at
        self._warnings = warnings

    def warned(self, text: str) -> None:
        self._warnings.append(text)

    def reach(self, place: str) -> None:
        if place == self._killed_at:
            raise DriverKilled

    def phase_started(self, iteration: int, phase: str) -> None:
        self.reach(f"{phase}:{iteration}")


class OwnActors(SimulatedRunActors):
    """The calls of the driver, answered by real engines in this process."""

    def __init__(self, own: OwnRun, spec: RunSpec, term: int, branch: int, watcher: Watcher) -> None:
        super().__init__(own.cluster, spec, term)
        self._own = own
        self._branch = branch
        self._watcher = watcher

    @property
    def _group(self) -> Group:
        assert self._own.group is not None, "the ranks are started before they are called"
        return self._own.group

    def _done(self, place: str, iteration: int) -> None:
        self._watcher.reach(f"after {place}:{iteration}")

    def start(self) -> tuple[str, ...]:
        self._created = () if self._own.group is not None else ("trainer-0",)
        return self._created

    def materialise(self, tell: Any = None) -> InputsReceipt:
        return build_inputs(self._spec, self._own.folder)

    def load(self, inputs: InputsReceipt) -> ActorsState:
        folder = self._own.folder
        if self._own.group is None:
            context = RankContext(folder, folder / inputs.folder, inputs.model_path, self._branch)
            self._own.group = Group.of(self._spec, folder, context)
        count = self._spec.engine_instances
        if self._own.samplers is None:
            engines = [build_rollout_engine(self._spec, "", folder / inputs.folder) for _ in range(count)]
            self._own.samplers = [engine for engine in engines if isinstance(engine, WorkloadSampler)]
        assert len(self._own.samplers) == count
        engine = self._group.engine
        return ActorsState(
            trainer_version=engine.version if self._group.settled else -1,
            trainer_key=engine.applied,
            engine_versions=tuple(sampler.version for sampler in self._own.samplers),
            checkpoint_in_flight=self._group.ranks[0].writer.in_flight,
            created=self._created,
        )

    def environments(self) -> list[Mapping[str, str]]:
        return [environment_facts(self._spec)]

    def sft(self) -> SftReceipt:
        receipts = self._group.all(lambda rank: rank.engine.sft())
        self._group.settled = True
        return receipts[0]

    def prepare(self, task: BatchTask) -> PrepareReceipt:
        receipt = self._group.all(lambda rank: rank.engine.prepare(task))[0]
        assert receipt is not None
        self._done("prepare", task.key.iteration)
        return receipt

    def prepared_is_whole(self, receipt: PrepareReceipt) -> bool:
        return prepared_is_whole(self._own.folder, receipt.folder, receipt.files)

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        receipt = self._group.all(lambda rank: rank.engine.learn(task, prepared))[0]
        self._done("learn", task.key.iteration)
        return receipt

    def skip(self, task: BatchTask) -> UpdateReceipt:
        return self._group.all(lambda rank: rank.engine.skip(task))[0]

    def evaluate_rows(self, run: str, iteration: int) -> RowsReceipt:
        task = RowsTask(WorkKey(run, self._branch, iteration, "evaluate"), self._term)
        receipts = self._group.all(lambda rank: rank.engine.evaluate(task))
        self._done("evaluate", iteration)
        return receipts[0]

    def sync(self, version: int) -> list[SyncReceipt]:
        assert self._spec.has.sync, "a run without engines that get weights is not asked to send any"
        lacking = [sampler for sampler in self._own.samplers or () if sampler.version != version]
        if lacking:
            assert self._group.engine.version == version, "the weights that are wanted are the trainer's"
            tensors = dict(self._group.all(lambda rank: list(rank.engine.stream_weights()))[0])
            for sampler in lacking:
                sampler.update_weights(tensors, version)
            self._own.updates.append(version)
        if self._own.samplers:
            self._done("sync", version)
        return []

    def sample(self, task: SampleTask) -> tuple[ShardRef, ...]:
        samplers = self._own.samplers
        assert samplers
        sealed = []
        for number in range(samplers[0].count_shards(task)):
            sampler = samplers[(number + self._term) % len(samplers)]  # another one with each driver
            found = sampler.sample(replace(task, key=replace(task.key, shard=number)))
            sealed.append(found)
            if f".t{self._term:04d}" in found.folder:
                self._own.drawn.append((task.key.iteration, number))
            self._watcher.reach(f"sampled:{number}:{task.key.iteration}")
        self._done("collect", task.key.iteration)
        return tuple(sealed)

    def check_weights(self, version: int, committed: str | None) -> None:
        digests = set(self._group.all(lambda rank: rank.engine.weights_digest()))
        assert len(digests) == 1 and (committed is None or digests == {committed})
        if self._own.samplers:
            dtype = type_sent(self._spec)
            held = part_digests(self._group.engine.sync_parts(), dtype) if len(self._group.ranks) == 1 else {}
            for sampler in self._own.samplers:
                assert sampler.rectangle_digests(list(held)) == list(held.values())

    def begin_checkpoint(self, run: str, audit_head: str) -> None:
        version = self._group.engine.version
        identity = CheckpointIdentity(run, self._branch, version, self._term, self._spec.digest, "", audit_head)
        folder = str(checkpoint_folder(self._branch, version, self._term))

        def begin(rank: Rank) -> None:
            rank.writer.begin(
                folder=folder,
                attempt="000001",
                identity=identity,
                freeze=rank.engine.freeze_state,
                at_once=True,
            )

        self._group.all(begin)
        self._done("checkpoint", version)

    def checkpoint_result(self, wait_seconds: float = 0.0) -> CheckpointReceipt | None:
        return self._group.all(lambda rank: rank.writer.wait(max(wait_seconds, 5.0)))[0]

    def restore(self, folder: str, manifest_sha256: str, version: int, renew: bool = False) -> None:
        verify_checkpoint(self._own.folder, folder, manifest_sha256)
        self._group.all(lambda rank: rank.engine.restore(self._own.folder / folder, version))
        self._group.settled = True


@dataclass
class OwnRun:
    """One run of a workload in its own home folder."""

    home: Home
    run: str
    cluster: Cluster
    group: Group | None = field(default=None)
    samplers: list[WorkloadSampler] | None = field(default=None)
    drawn: list[tuple[int, int]] = field(default_factory=list)
    """Iteration and number of each shard that samplers have drawn."""
    updates: list[int] = field(default_factory=list)
    """Versions of the weights that samplers have got."""
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, spec: Path, *overrides: str) -> OwnRun:
        home = Home(folder)
        fast = ("tracking.enabled=false", "trainer.engine.ranks=1", f"recovery.lease_seconds={LEASE_SECONDS}")
        return cls.opened(home, create_run(home, load_spec(spec, [*fast, *overrides])))

    @classmethod
    def opened(cls, home: Home, run: str) -> OwnRun:
        """Opens a run of a home folder."""
        with Ledger.open(home.ledger) as ledger:
            spec = current_spec(ledger, run)
        trace = Trace(spec.iterations, {}, Durations())
        return cls(home, run, Cluster(home.run_folder(run), trace, 1, 1, spec.checkpoints.every))

    @property
    def folder(self) -> Path:
        return self.home.run_folder(self.run)

    def ledger(self) -> Ledger:
        return Ledger.open(self.home.ledger, migrate=False, clock=self.cluster.clock.time_ms)

    def results(self) -> RunResults:
        with self.ledger() as ledger:
            return run_results(ledger, self.run)

    def revise(self, *overrides: str) -> None:
        """Changes the spec from the next iteration on, as `yatt resume --set` does; the ranks are then started anew."""
        revise(self.home, self.run, overrides)
        self.group = None
        self.samplers = None

    def drive(self, killed_at: str = "", cold: bool = False, until: int | None = None) -> SessionOutcome | None:
        """Drives one session; returns None if the driver was killed.

        cold: the ranks did not survive the previous one.
        until: the iteration after which it stops; None for the run's target.
        """
        if cold:
            self.group = None
            self.samplers = None
        ledger = self.ledger()
        watcher = Watcher(killed_at, self.warnings)
        try:
            spec = current_spec(ledger, self.run)
            fence = ledger.leases.acquire(self.run, this_process(), LEASE_SECONDS, lambda holder: True)

            def actors(spec: RunSpec, run_folder: Path, term: int, branch: int, **_: object) -> OwnActors:
                return OwnActors(self, spec, term, branch, watcher)

            with without_prefect_and_ray(), mock.patch("flows.driver.session.RunActors", actors):
                context = RunContext.of(self.home, spec, ledger, fence, watcher, self.cluster.clock)
                session = DriverSession(context, until=until)
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
