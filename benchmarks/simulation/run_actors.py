"""The driver's view of a simulated cluster: the calls of `yatt_core.run_actors.run_actors.RunActors`, on simulated time.

The real class learns from Ray that an actor is gone; this one learns it from the cluster, at the call that needs the
actor, even if the actor was lost long before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.simulation.cluster import Cluster, Gathering, Publication, Streamed, Update
from benchmarks.simulation.files import read_checkpoint
from benchmarks.simulation.trace import ENGINE, TRAINER
from yatt_core.actors.leftovers import Leftovers
from yatt_core.actors.use_meter import ProcessUse
from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.errors import InfrastructureError
from yatt_core.keys import WorkKey, checkpoint_folder
from yatt_core.placement.seen import RuntimePolicy, Usage
from yatt_core.protocols.receipts import (
    ActorSeat,
    BatchTask,
    CheckpointReceipt,
    EvaluateReceipt,
    InputsReceipt,
    PrepareReceipt,
    SftReceipt,
    ShardReceipt,
    ShardTask,
    SyncReceipt,
    TaskResult,
    UpdateReceipt,
)
from yatt_core.run_actors.actors_state import ActorsState
from yatt_core.run_actors.node_logs import LogSource
from yatt_core.spec import RunSpec

HELD_OUT = 4


class OneDisk:
    """The disks of simulated nodes: all share one."""

    are_shared = True

    def by_node(self) -> dict[str, str]:
        """Returns nothing: no node has a disk of its own."""
        return {}

    def log_sources(self) -> tuple[LogSource, ...]:
        """Returns nothing: no node has a disk of its own."""
        return ()


class SimulatedCollection:
    """Shards that simulated engines are at work on."""

    def __init__(self, actors: SimulatedRunActors, tasks: Sequence[ShardTask]) -> None:
        self._actors = actors
        self._tasks = tasks

    def receipts(self, is_enough: Callable[[], bool] | None = None) -> Iterator[ShardReceipt]:
        """Yields shards as they are sealed."""
        return self._actors.collect(self._tasks, is_enough)


class SimulatedRunActors:
    """One term's access to the cluster; the cluster remains when a driver ends."""

    def __init__(self, cluster: Cluster, spec: RunSpec, term: int) -> None:
        self._cluster = cluster
        self._spec = spec
        self._term = term
        self.files = OneDisk()
        self._created: tuple[str, ...] = ()
        self.deadline = 0.0
        self.failures: list[Any] = []
        self.avoid_nodes: frozenset[str] = frozenset()
        self.resident = True

    def when_extended(self, allow: Callable[[float], None]) -> None:
        """Does nothing: no wait is ever extended."""

    def discard_usage(self) -> None:
        """Does nothing: the instances do no work that `usage` would return."""

    def usage(self) -> tuple[Usage, ...]:
        """Returns nothing: the simulation does not measure devices."""
        return ()

    def forget_use(self) -> None:
        """Does nothing: nobody asks simulated processes what they used before."""

    def ask_use(self) -> None:
        """Does nothing: the simulation has no processes."""

    def process_use(self) -> dict[str, ProcessUse]:
        """Returns nothing: the simulation has no processes."""
        return {}

    def seats(self) -> tuple[ActorSeat, ...]:
        """Returns nothing: simulated actors have no devices."""
        return ()

    def had_room(self) -> None:
        """Does nothing: the simulated cluster neither shrinks nor grows."""

    def check_room(self) -> None:
        """Does nothing: there is always room."""

    def answers(self, dependency: str) -> bool | None:
        """Returns None: only another attempt can tell."""
        return None

    def leave_devices(self) -> None:
        """Ends trainer and engine."""
        self._cluster.lost |= {TRAINER, ENGINE}

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> tuple[str, ...]:
        """Creates the missing actors in parallel; returns their names."""
        cluster = self._cluster
        times = self._cluster.trace.durations
        lost = set(cluster.lost)
        cluster.spend(max((times.reload(kind) for kind in lost), default=0.0))
        cluster.lost -= lost
        names = {TRAINER: [f"trainer-{i}" for i in range(self._spec.trainer.engine.ranks)], ENGINE: ["rollout-0"]}
        self._created = tuple(name for kind in sorted(lost) for name in names[kind])
        return self._created

    def outgrown(self) -> bool:
        """Returns no change: nodes neither join nor leave, and controllers are not lost."""
        return False

    def controllers_by_node(self) -> Mapping[str, int]:
        """Returns nothing: the number of controllers does not depend on nodes."""
        return {}

    def materialise(self, tell: Callable[[str], None] | None = None) -> InputsReceipt:
        """Does nothing: there is nothing to write."""
        return InputsReceipt(
            folder="inputs",
            model_path="",
            manifest_sha256="0" * 64,
            data_digest="0" * 64,
            train_prompts=1,
            held_out_prompts=HELD_OUT,
            probe_prompts=1,
            vocabulary=1,
            parameters=1,
        )

    def load(self, inputs: InputsReceipt) -> ActorsState:
        """Returns the state that the actors hold once they have done all earlier work."""
        trainer = self._cluster.trainer
        if trainer.update is not None:
            self._cluster.spend(trainer.update.remaining, needs=(TRAINER,))
        return ActorsState(
            trainer_version=trainer.version,
            trainer_key=None if trainer.receipt is None else trainer.receipt.key,
            engine_versions=tuple(self._cluster.engine_versions),
            checkpoint_in_flight=trainer.publication is not None or trainer.published is not None,
            created=self._created,
        )

    def spilled_bytes(self) -> int:
        """Returns 0: there is no object store."""
        return 0

    batches_by_chance = False
    """Whether engines answer differently in another batch."""

    def rollout_capabilities(self) -> list[Mapping[str, bool]]:
        """Returns nothing: simulated engines compute no bits."""
        return []

    def environments(self) -> list[Mapping[str, str]]:
        """Returns an environment that never changes."""
        return [{"layout": "simulated"}]

    def stop(self) -> None:
        """Does nothing: the simulation ends with its process."""

    # -- phases -------------------------------------------------------------------------------------------------------

    def sft(self) -> SftReceipt:
        """Brings the trainer to version 0 in no time."""
        trainer = self._cluster.trainer
        trainer.version = 0
        trainer.state = b"initial"
        return SftReceipt(steps=0, loss=0.0, probe_accuracy=0.0, seconds=0.0, weights_digest=trainer.state.hex())

    def place(self, roles: str, runtime_policy: RuntimePolicy) -> None:
        """Lets all devices roll out: no judge is simulated."""

    def rest(self) -> None:
        """Does nothing: no memory is simulated."""

    def begin_collecting(self, tasks: Sequence[ShardTask]) -> SimulatedCollection:
        """Has the engines begin with shards; they go on as time passes."""
        self.engage(tasks)
        return SimulatedCollection(self, tasks)

    def engage(self, tasks: Sequence[ShardTask]) -> None:
        """Begins a collection unless an earlier driver began one. Raises `InfrastructureError` without the right weights."""
        cluster = self._cluster
        waiting = [task for task in tasks if task.key not in cluster.sealed]
        if not waiting or cluster.collection is not None:
            return
        cluster.spend(0.0, needs=(ENGINE,))
        wanted = waiting[0].weight_version
        if any(held != wanted for held in cluster.engine_versions):
            raise InfrastructureError(
                f"simulated: the engines hold versions {cluster.engine_versions}, not {wanted}; sync them first"
            )
        cluster.collection = Gathering(waiting)

    def collect(
        self, tasks: Sequence[ShardTask], is_enough: Callable[[], bool] | None = None
    ) -> Iterator[ShardReceipt]:
        """Yields shards as they are sealed; continues a collection that was begun before."""
        cluster = self._cluster
        self.engage(tasks)
        for task in tasks:
            while task.key not in cluster.sealed:
                if is_enough is not None and is_enough():
                    return
                if cluster.collection is None:
                    raise InfrastructureError("simulated: the controllers stopped, an engine was lost")
                cluster.spend(cluster.shard_seconds - cluster.collection.worked, needs=(ENGINE,))
            receipt = cluster.sealed[task.key]
            yield replace(receipt, adopted=receipt.term != self._term)

    def cut(self) -> None:
        """Ends the collection in progress."""
        self._cluster.collection = None

    def accumulate(self, task: BatchTask) -> None:
        """Has the trainer learn from an iteration's first shards, beside the engines; what was begun for others is lost."""
        cluster = self._cluster
        trainer = cluster.trainer
        if TRAINER in cluster.lost or trainer.version != task.key.iteration - 1:
            return  # the call fails, which shows when the trainer is waited for
        streamed = trainer.streamed
        if streamed is None or streamed.iteration != task.key.iteration:
            streamed = trainer.streamed = Streamed(task.key.iteration, [])
        known = len(streamed.shards)
        if streamed.shards[: len(task.shards)] != list(task.shards[:known]):
            streamed = trainer.streamed = Streamed(task.key.iteration, [])
            known = 0
        streamed.shards += task.shards[known:]

    def _streamed_rest(self, task: BatchTask) -> float:
        """Returns the seconds that are left of learning from all shards of an iteration."""
        self.accumulate(task)
        streamed = self._cluster.trainer.streamed
        done = 0.0 if streamed is None else streamed.worked
        return self._cluster.learn_seconds(len(task.shards)) - done

    def prepare(self, task: BatchTask) -> PrepareReceipt:
        """Lets the phase's time pass; an attempt that is lost starts over."""
        streams = self._spec.asynchrony.streamed
        seconds = self._streamed_rest(task) if streams else self._cluster.trace.durations.prepare
        self._cluster.spend(seconds, needs=(TRAINER,))
        return PrepareReceipt(key=task.key, folder=f"prepared.t{self._term:04d}", files={}, metrics={}, timing={})

    def prepared_is_whole(self, receipt: PrepareReceipt) -> bool:
        """Returns True: no files are lost here, but a rank must exist to confirm it."""
        self._cluster.spend(0.0, needs=(TRAINER,))
        return True

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Applies an update, or returns the receipt if it is already applied."""
        cluster = self._cluster
        trainer = self._cluster.trainer
        cluster.spend(0.0, needs=(TRAINER,))
        if trainer.receipt is not None and trainer.receipt.key == task.key:
            return trainer.receipt
        if trainer.version != task.key.iteration - 1:
            raise InfrastructureError(f"simulated: {task.key} was asked of a trainer at version {trainer.version}")
        streams = self._spec.asynchrony.streamed
        trainer.update = Update(task, self._streamed_rest(task) if streams else cluster.trace.durations.learn)
        cluster.spend(trainer.update.remaining, needs=(TRAINER,))
        assert trainer.receipt is not None, "an update's time has passed"
        return trainer.receipt

    def sync(self, version: int) -> list[SyncReceipt]:
        """Transfers the weights to the engines that do not have them."""
        cluster = self._cluster
        cluster.spend(0.0, needs=(TRAINER, ENGINE))
        if any(held != version for held in cluster.engine_versions):
            cluster.engine_versions = [-1] * cluster.engines
            cluster.spend(cluster.trace.durations.sync, needs=(TRAINER, ENGINE))
            cluster.engine_versions = [version] * cluster.engines
        return [SyncReceipt(number, version, 0.0) for number in range(cluster.engines)]

    def check_weights(self, version: int, committed: str | None) -> None:
        """Does nothing: simulated engines hold no weights."""

    def evaluate(
        self,
        run: str,
        iteration: int,
        held_out: int,
        only: Collection[int] | None = None,
        allows: Callable[[int], bool] | None = None,
    ) -> EvaluateReceipt:
        """Takes no simulated time; only the first and the last iteration are evaluated."""
        key = WorkKey(run, 0, iteration, "evaluate")
        rows = tuple(range(held_out) if only is None else only)
        return EvaluateReceipt(
            key,
            (TaskResult(prompt_id="virtual", source=0, samples=1, correct=1, reward=0.0),) * len(rows),
            rows,
            held_out,
        )

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def copy_ahead(self, version: int) -> None:
        """Does nothing: a simulated checkpoint's stall is the same, whenever the copy begins."""

    def begin_checkpoint(self, run: str, audit_head: str) -> None:
        """Lets the stall pass, after which the checkpoint is published in the background."""
        cluster = self._cluster
        trainer = self._cluster.trainer
        times = self._cluster.trace.durations
        cluster.spend(times.stall, needs=(TRAINER,))
        digest = trainer.state.hex()
        identity = CheckpointIdentity(
            run=run,
            branch=0,
            iteration=trainer.version,
            term=self._term,
            spec_digest=self._spec.digest,
            weights_digest=digest,
            audit_head=audit_head,
        )
        folder = str(checkpoint_folder(0, trainer.version, self._term))
        trainer.publication = Publication(identity, folder, trainer.state, times.publish)

    def checkpoint_result(self, wait_seconds: float = 0.0) -> CheckpointReceipt | None:
        """Returns the receipt of a checkpoint one time, when it is published; otherwise None."""
        cluster = self._cluster
        trainer = self._cluster.trainer
        cluster.spend(0.0, needs=(TRAINER,))
        if trainer.publication is not None and wait_seconds:
            cluster.spend(min(wait_seconds, trainer.publication.remaining), needs=(TRAINER,))
        receipt = trainer.published
        trainer.published = None
        return receipt

    def tidy(self, leftovers: Leftovers) -> None:
        """Does nothing: there is one disk."""

    def restore(self, folder: str, manifest_sha256: str, version: int, renew: bool = False) -> None:
        """Loads a checkpoint; the time for this is part of the reload."""
        cluster = self._cluster
        trainer = self._cluster.trainer
        cluster.spend(0.0, needs=(TRAINER,))
        trainer.state = read_checkpoint(cluster.folder, folder, manifest_sha256)
        trainer.version = version
        trainer.receipt = None
        trainer.streamed = None
