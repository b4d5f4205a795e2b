"""The driver's view of a run's actors: starts them, gives them work, collects receipts, ends them.

Consumes a spec, an epoch and a connected Ray cluster. Produces receipts, never payload: weights go from the trainer to the
engines as object references that this process does not open. Every wait has a deadline; a lost actor or a missed deadline is
an `InfrastructureError` that names it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from yatt_core.cluster.metering import BytesMeter, metered_get, unwrap_ray_error
from yatt_core.controllers.controller import Controller
from yatt_core.controllers.dispatcher import Dispatcher
from yatt_core.controllers.generation import PoolHandles
from yatt_core.engines.rollout.actor import RolloutActor
from yatt_core.engines.train.actor import TrainerActor
from yatt_core.errors import InfrastructureError
from yatt_core.keys import WorkKey
from yatt_core.receipts import (
    ActorIdentity,
    BatchTask,
    EvaluateReceipt,
    EvaluateTask,
    InputsReceipt,
    PrepareReceipt,
    ShardReceipt,
    ShardTask,
    SnapshotReceipt,
    SyncReceipt,
    UpdateReceipt,
    WarmupReceipt,
)
from yatt_core.spec import RunSpec

log = logging.getLogger(__name__)
START_SECONDS = 180.0


class Fleet:
    """Controllers, rollout engines and trainer ranks of one run under one epoch."""

    def __init__(self, spec: RunSpec, run_folder: Path, epoch: int, branch: int, meter: BytesMeter) -> None:
        self._spec, self._folder, self._epoch, self._branch, self._meter = spec, run_folder, epoch, branch, meter
        self._deadline = spec.recovery.phase_deadline_seconds
        self._controllers: list[Any] = []
        self._engines: list[Any] = []
        self._ranks: list[Any] = []
        self._dispatcher: Any = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Creates all actors without waiting for them; those that an earlier driver left are ended first."""
        try:
            self._end_leftovers()
            self._create_all()
        except ray.exceptions.RayError as error:
            raise unwrap_ray_error(error, "Ray, to start the actors") from error

    def _create_all(self) -> None:
        document, folder = self._spec.model_dump_json(), str(self._folder)
        self._dispatcher = self._create(Dispatcher, "dispatcher", self._spec.rollout.engine.instances, self._epoch)
        self._controllers = [
            self._create(Controller, f"controller-{i}", document, folder, i, self._epoch)
            for i in range(self._spec.controllers.count)
        ]
        self._engines = [
            self._create(RolloutActor, f"rollout-{i}", document, folder, i, self._epoch)
            for i in range(self._spec.rollout.engine.instances)
        ]
        self._ranks = [
            self._create(TrainerActor, f"trainer-{i}", document, folder, i, self._epoch)
            for i in range(self._spec.trainer.engine.ranks)
        ]

    def materialise(self) -> InputsReceipt:
        """Has the run's inputs written by the first controller, unless they are there."""
        reference = self._controllers[0].materialise.remote(self._epoch)
        receipt: InputsReceipt = self._get([reference], "controller-0 to write the inputs", START_SECONDS)[0]
        return receipt

    def load(self, inputs: InputsReceipt) -> list[ActorIdentity]:
        """Makes every actor ready for work; the trainer's ranks form their group and hold the initial weights."""
        pool = PoolHandles(self._dispatcher, tuple(self._engines))
        loading = [controller.load.remote(self._epoch, inputs, pool) for controller in self._controllers]
        loading += [engine.load.remote(self._epoch, inputs.model_path) for engine in self._engines]
        loading += [rank.load.remote(self._epoch, inputs, self._branch) for rank in self._ranks]
        identities: list[ActorIdentity] = self._get(loading, "the actors to load", START_SECONDS)
        address = self._get([self._ranks[0].rendezvous.remote()], "trainer-0", START_SECONDS)[0]
        self._all_ranks("connect", self._epoch, len(self._ranks), address)
        self._all_ranks("initialise", self._epoch)
        return identities

    def stop(self) -> None:
        """Ends all actors; those of a head that is gone have ended with it."""
        for actor in (*self._controllers, *self._engines, *self._ranks, self._dispatcher):
            if actor is not None:
                with suppress(ray.exceptions.RayError):
                    ray.kill(actor, no_restart=True)
        self._controllers, self._engines, self._ranks, self._dispatcher = [], [], [], None

    def environment(self) -> Mapping[str, str]:
        """What a bit-exact replay depends on besides the log, as the trainer's first rank sees it."""
        facts: Mapping[str, str] = self._get([self._ranks[0].environment.remote()], "trainer-0", START_SECONDS)[0]
        return facts

    # -- phases -------------------------------------------------------------------------------------------------------

    def warm_up(self) -> WarmupReceipt:
        """Supervised training before the first iteration."""
        receipt: WarmupReceipt = self._all_ranks("warm_up", self._epoch)[0]
        return receipt

    def collect(self, tasks: Sequence[ShardTask]) -> Iterator[ShardReceipt]:
        """Spreads shards over the controllers and yields receipts as they come."""
        count = len(self._controllers)
        streams = {
            controller.collect.options(num_returns="streaming").remote(tuple(tasks[i::count])): f"controller-{i}"
            for i, controller in enumerate(self._controllers)
            if tasks[i::count]
        }
        deadline = time.monotonic() + self._deadline
        while streams:
            ready, _ = ray.wait(list(streams), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise InfrastructureError(f"{', '.join(streams.values())}: no shard within {self._deadline:.0f} s")
            try:
                reference = next(ready[0])
            except StopIteration:
                del streams[ready[0]]
                continue
            except ray.exceptions.RayError as error:
                raise unwrap_ray_error(error, streams[ready[0]]) from error
            yield self._get([reference], streams[ready[0]], self._deadline)[0]

    def prepare(self, task: BatchTask) -> PrepareReceipt:
        """Old and reference log-probabilities where needed, and the advantages."""
        receipt: PrepareReceipt = self._all_ranks("prepare", task)[0]
        return receipt

    def prepared_is_whole(self, receipt: PrepareReceipt) -> bool:
        """True if what an earlier attempt prepared is there, byte for byte; the trainer's first rank reads it."""
        whole: bool = self._get([self._ranks[0].prepared_is_whole.remote(receipt)], "trainer-0", self._deadline)[0]
        return whole

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Applies an iteration's optimizer steps on all ranks, which have to agree on the outcome."""
        receipts: list[UpdateReceipt] = self._all_ranks("learn", task, prepared)
        fingerprints = [receipt.fingerprint for receipt in receipts]
        if any(fingerprint != fingerprints[0] for fingerprint in fingerprints):
            raise InfrastructureError(f"iteration {task.key.iteration}: the trainer's ranks disagree: {fingerprints}")
        return receipts[0]

    def sync(self, version: int) -> list[SyncReceipt]:
        """Brings the weights of a version into all rollout engines."""
        packed = self._ranks[0].export.remote(self._epoch, version)
        updates = [engine.update.remote(self._epoch, packed, version) for engine in self._engines]
        receipts: list[SyncReceipt] = self._get(updates, "the rollout engines to take new weights", self._deadline)
        return receipts

    def evaluate(self, run: str, iteration: int, held_out: int) -> list[EvaluateReceipt]:
        """Greedy answers to the held-out tasks, spread over the controllers."""
        count = len(self._controllers)
        bounds = [held_out * i // count for i in range(count + 1)]
        tasks = [
            EvaluateTask(
                WorkKey(run, self._branch, iteration, "evaluate", shard=i),
                self._epoch,
                bounds[i],
                bounds[i + 1],
                iteration,
            )
            for i in range(count)
        ]
        references = [
            controller.evaluate.remote(task) for controller, task in zip(self._controllers, tasks, strict=True)
        ]
        receipts: list[EvaluateReceipt] = self._get(references, "the controllers to evaluate", self._deadline)
        return receipts

    def begin_snapshot(self, run: str, audit_head: str) -> None:
        """Copies the trainer's tensors; they are published in the background. audit_head: stands in the manifest."""
        reference = self._ranks[0].begin_snapshot.remote(self._epoch, run, self._branch, audit_head)
        self._get([reference], "trainer-0", self._deadline)

    def snapshot_result(self, wait_seconds: float = 0.0) -> SnapshotReceipt | None:
        """The receipt of the snapshot in flight once it is durable."""
        reference = self._ranks[0].snapshot_result.remote(wait_seconds)
        receipt: SnapshotReceipt | None = self._get([reference], "trainer-0 to publish", self._deadline + wait_seconds)[
            0
        ]
        return receipt

    def restore(self, folder: str, manifest_sha256: str, version: int) -> None:
        """Loads a snapshot into all ranks. Raises `DataError` where its files do not agree with the digest."""
        self._all_ranks("restore", self._epoch, folder, manifest_sha256, version)

    # -- plumbing -----------------------------------------------------------------------------------------------------

    def _create(self, actor: type, name: str, *arguments: Any) -> Any:
        """A detached actor: it outlives the driver, is found by name, and is never restarted behind the driver's back."""
        remote = ray.remote(actor).options(
            name=name, lifetime="detached", max_restarts=0, max_task_retries=0, num_cpus=0
        )
        return remote.remote(*arguments)

    def _end_leftovers(self) -> None:
        """Ends the actors of an earlier driver of this run, which the new epoch has fenced."""
        for name in ray.util.list_named_actors():
            with suppress(ValueError):  # it ended by itself since it was listed
                ray.kill(ray.get_actor(name), no_restart=True)
        deadline = time.monotonic() + START_SECONDS
        while ray.util.list_named_actors():
            if time.monotonic() > deadline:
                raise InfrastructureError(f"actors of an earlier driver do not end: {ray.util.list_named_actors()}")
            time.sleep(0.02)

    def _all_ranks(self, method: str, *arguments: Any) -> list[Any]:
        references = [getattr(rank, method).remote(*arguments) for rank in self._ranks]
        return self._get(references, f"the trainer's ranks to {method}", self._deadline)

    def _get(self, references: list[Any], what: str, timeout: float) -> list[Any]:
        try:
            return metered_get(self._meter, references, timeout, what)
        except ray.exceptions.RayTaskError as error:
            # Not raised by us on purpose: a defect or a library's failure; the actor's log has its traceback.
            log.error("%s: %s", what, error)
            raise InfrastructureError(f"waiting for {what}: {str(error).strip().splitlines()[-1]}") from error
