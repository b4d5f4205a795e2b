"""A simulated cluster: its clock, the work of its actors, and the faults that strike them.

Actors outlive the driver as in the product: without a driver, shards in progress are still sealed and an update in
progress is finished. Shards and checkpoints are real files with real manifests, of a few bytes each. The trainer's
weights are a chain of digests over the experience that it learned from, so that a wrong replay would show.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.simulation.files import seal_shard, write_checkpoint
from benchmarks.simulation.trace import DRIVER, ENGINE, TRAINER, Fault, Trace
from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.errors import InfrastructureError
from yatt_core.experience.carried import CARRIED_FILE
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import BatchTask, CheckpointReceipt, ShardReceipt, ShardRef, ShardTask, UpdateReceipt

START_MS = 1_700_000_000_000


class DriverKilled(BaseException):
    """The end of the driver's process. Not an `Exception`, so that no handler in the driver sees it."""


class SimulatedClock:
    """Time that passes only on request."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        """Returns the seconds since the simulation began."""
        return self.seconds

    def time_ms(self) -> int:
        """Returns the milliseconds since 1970."""
        return START_MS + round(1000 * self.seconds)

    def sleep(self, seconds: float) -> None:
        """Lets this many seconds pass."""
        self.seconds += seconds


@dataclass(slots=True)
class Gathering:
    """Shards that are collected one after the other. worked: seconds spent on the first of `waiting`."""

    waiting: list[ShardTask]
    worked: float = 0.0


@dataclass(slots=True)
class Update:
    """An update in progress."""

    task: BatchTask
    remaining: float


@dataclass(slots=True)
class Streamed:
    """Shards of an iteration that the trainer learns from one after another, as they are sealed.

    worked: seconds spent on them.
    """

    iteration: int
    shards: list[ShardRef]
    worked: float = 0.0


@dataclass(slots=True)
class Publication:
    """A checkpoint that is written in the background."""

    identity: CheckpointIdentity
    folder: str
    state: bytes
    remaining: float


@dataclass(slots=True)
class Trainer:
    """All ranks of the trainer. version: -1 without weights."""

    version: int = -1
    state: bytes = b""
    receipt: UpdateReceipt | None = None
    update: Update | None = None
    streamed: Streamed | None = None
    publication: Publication | None = None
    published: CheckpointReceipt | None = None


@dataclass(slots=True)
class Cluster:
    """The state of the actors, whichever driver uses them. lost: kinds of actors that died and were not replaced."""

    folder: Path
    trace: Trace
    shards: int
    engines: int
    every: int
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    lost: set[str] = field(default_factory=lambda: {TRAINER, ENGINE})
    trainer: Trainer = field(default_factory=Trainer)
    engine_versions: list[int] = field(default_factory=list)
    collection: Gathering | None = None
    sealed: dict[WorkKey, ShardReceipt] = field(default_factory=dict)
    struck: dict[int, Fault] = field(default_factory=dict)
    _armed: tuple[float, int, Fault] | None = None

    def __post_init__(self) -> None:
        self.engine_versions = [-1] * self.engines

    # -- time ---------------------------------------------------------------------------------------------------------

    def iteration_begins(self, iteration: int) -> None:
        """Arms the iteration's fault, if it has one that has not struck before."""
        self.sealed = {key: receipt for key, receipt in self.sealed.items() if key.iteration >= iteration}
        fault = self.trace.faults.get(iteration)
        if fault is None or iteration in self.struck or self._armed is not None:
            return
        times = self.trace.durations
        length = times.iteration + (times.stall if iteration % self.every == 0 else 0.0)
        self._armed = (self.clock.seconds + fault.share * length, iteration, fault)

    def spend(self, seconds: float, needs: Collection[str] = ()) -> None:
        """Lets time pass in the driver and in all actors.

        needs: kinds of actors that the driver waits for.

        Raises `InfrastructureError` as soon as an actor of these kinds is lost, and `DriverKilled` if the driver is killed.
        """
        end = self.clock.seconds + seconds
        self._require(needs)
        if self._armed is not None and self._armed[0] <= end:
            at, iteration, fault = self._armed
            self._armed = None
            self._work(max(0.0, at - self.clock.seconds))
            self._strike(iteration, fault)
            self._require(needs)
        self._work(max(0.0, end - self.clock.seconds))

    def _require(self, needs: Collection[str]) -> None:
        if gone := sorted(self.lost.intersection(needs)):
            raise InfrastructureError(f"simulated: the {gone[0]} died")

    def _strike(self, iteration: int, fault: Fault) -> None:
        self.struck[iteration] = fault
        if fault.kind == DRIVER:
            raise DriverKilled
        self.lost.add(fault.kind)
        if fault.kind == TRAINER:
            self.trainer = Trainer()
        else:
            self.collection = None
            self.engine_versions[0] = -1

    def _work(self, seconds: float) -> None:
        """Advances the clock and the actors by `seconds`, during which no fault strikes."""
        self.clock.sleep(seconds)
        self._seal(seconds)
        trainer = self.trainer
        if (streamed := trainer.streamed) is not None:
            streamed.worked = min(streamed.worked + seconds, self.learn_seconds(len(streamed.shards)))
        if (update := trainer.update) is not None:
            update.remaining -= seconds
            if update.remaining <= 1e-9:
                trainer.update = None
                self._apply(update.task)
        if (publication := trainer.publication) is not None:
            publication.remaining -= seconds
            if publication.remaining <= 1e-9:
                trainer.publication = None
                trainer.published = write_checkpoint(
                    self.folder, publication.folder, publication.identity, publication.state
                )

    # -- experience ---------------------------------------------------------------------------------------------------

    @property
    def shard_seconds(self) -> float:
        """The seconds that one shard takes."""
        return self.trace.durations.collect / self.shards

    def learn_seconds(self, shards: int) -> float:
        """Returns the seconds of preparing and learning from some shards, if they are taken one after another."""
        return (self.trace.durations.prepare + self.trace.durations.learn) * shards / self.shards

    def _seal(self, seconds: float) -> None:
        if self.collection is None:
            return
        self.collection.worked += seconds
        while self.collection.waiting and self.collection.worked >= self.shard_seconds - 1e-9:
            self.collection.worked -= self.shard_seconds
            task = self.collection.waiting.pop(0)
            self.sealed[task.key] = seal_shard(self.folder, task)
        if not self.collection.waiting:
            self.collection = None

    # -- weights ------------------------------------------------------------------------------------------------------

    def _apply(self, task: BatchTask) -> None:
        trainer = self.trainer
        learnt = task.shards if trainer.streamed is None else trainer.streamed.shards
        trainer.streamed = None
        shards = "".join(shard.manifest_sha256 for shard in learnt)
        if any((self.folder / shard.folder / CARRIED_FILE).exists() for shard in learnt):
            shards += repr(task.admission)  # with slices, a shard may have groups that another update learns from
        trainer.state = hashlib.sha256(trainer.state + shards.encode()).digest()
        trainer.version = task.key.iteration
        fingerprint: dict[str, float | str] = {"weights_digest": trainer.state.hex()}
        trainer.receipt = UpdateReceipt(
            key=task.key, version=trainer.version, metrics={"loss": 0.0}, fingerprint=fingerprint, timing={}
        )
