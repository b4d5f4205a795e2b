"""The Ray actor around one rank of a train engine: fences its callers, packs weights, publishes snapshots.

Consumes tasks that name sealed experience; produces receipts, packed weights for the rollout engines, and snapshots.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.checkpoints.verify import verify_snapshot
from yatt_core.checkpoints.writer import SnapshotIdentity, SnapshotWriter
from yatt_core.cluster.runner import free_port
from yatt_core.data.prepared import prepared_is_whole
from yatt_core.digests import weights_digest
from yatt_core.engines.packing import PackedTensors, pack_tensors
from yatt_core.engines.protocol import RankContext, TrainEngine
from yatt_core.engines.registry import build_train_engine
from yatt_core.environment import environment_facts
from yatt_core.errors import InfrastructureError
from yatt_core.fence import EpochFence
from yatt_core.keys import snapshot_folder
from yatt_core.logs import actor_logs, log_context
from yatt_core.receipts import (
    ActorIdentity,
    BatchTask,
    InputsReceipt,
    PrepareReceipt,
    SnapshotReceipt,
    UpdateReceipt,
    WarmupReceipt,
)
from yatt_core.spec import RunSpec


class TrainerActor:
    """One logical rank. Calls are served one at a time, in the order they come."""

    def __init__(self, spec_json: str, run_folder: str, rank: int, epoch: int) -> None:
        self._spec = RunSpec.model_validate_json(spec_json)
        self._folder = Path(run_folder)
        self._rank = rank
        self._fence = EpochFence(epoch)
        self._engine: TrainEngine | None = None
        self._snapshots = SnapshotWriter(self._folder)
        self._identity = actor_logs(self._folder, f"trainer-{rank}", epoch)

    def load(self, epoch: int, inputs: InputsReceipt, branch: int) -> ActorIdentity:
        """Builds the engine for the run's inputs."""
        self._fence.check(epoch)
        context = RankContext(self._folder, self._folder / inputs.folder, inputs.model_path, branch)
        self._engine = build_train_engine(self._spec, context)
        kind = self._spec.trainer.engine.kind
        return ActorIdentity(self._identity.name, self._identity.pid, self._identity.node, kind)

    def environment(self) -> dict[str, str]:
        """What a replay depends on besides the log: library versions, instruction set, threads."""
        return environment_facts(self._spec)

    def rendezvous(self) -> str:
        """A free loopback address where the ranks may meet."""
        return f"tcp://127.0.0.1:{free_port()}"

    def connect(self, epoch: int, ranks: int, address: str) -> None:
        """Joins the group of ranks."""
        self._fence.check(epoch)
        self._ready().connect(self._rank, ranks, address)

    def initialise(self, epoch: int) -> None:
        """Loads the initial weights."""
        self._fence.check(epoch)
        self._ready().initialise()

    def warm_up(self, epoch: int) -> WarmupReceipt:
        """Supervised training on the demonstrations."""
        self._fence.check(epoch)
        with log_context(iteration=0, phase="warm_up"):
            return self._ready().warm_up()

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Old and reference log-probabilities, advantages."""
        self._fence.check(task.epoch)
        with log_context(iteration=task.key.iteration, phase="prepare"):
            return self._ready().prepare(task)

    def prepared_is_whole(self, receipt: PrepareReceipt) -> bool:
        """True if the prepared columns are there and agree with their digests."""
        return prepared_is_whole(self._folder, receipt.folder, receipt.files)

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """The iteration's optimizer steps."""
        self._fence.check(task.epoch)
        with log_context(iteration=task.key.iteration, phase="learn"):
            return self._ready().learn(task, prepared)

    def export(self, epoch: int, version: int) -> PackedTensors:
        """The weights of a version, for the rollout engines."""
        self._fence.check(epoch)
        engine = self._ready()
        if engine.version != version:
            raise InfrastructureError(f"trainer-{self._rank} holds version {engine.version}, not {version}")
        return pack_tensors(engine.export_weights())

    def begin_snapshot(self, epoch: int, run: str, branch: int, audit_head: str) -> None:
        """Copies the tensors now and publishes them in the background; first waits for a snapshot in flight."""
        self._fence.check(epoch)
        engine = self._ready()
        weights = engine.export_weights()
        digest = weights_digest(weights)
        identity = SnapshotIdentity(run, branch, engine.version, epoch, self._spec.digest, digest, audit_head)
        # Weights, the optimizer's two moments, a reference.
        needed_bytes = 4 * sum(tensor.nbytes for tensor in weights.values())
        folder = str(snapshot_folder(branch, engine.version, epoch))
        self._snapshots.begin(folder, identity, engine.freeze_state(), needed_bytes)

    def snapshot_result(self, wait_seconds: float) -> SnapshotReceipt | None:
        """The receipt of the snapshot in flight, once; none while it is being written or where there is none."""
        return self._snapshots.wait(wait_seconds) if wait_seconds else self._snapshots.poll()

    def restore(self, epoch: int, folder: str, manifest_sha256: str, version: int) -> None:
        """Verifies a snapshot against the ledger's digest and loads it."""
        self._fence.check(epoch)
        verify_snapshot(self._folder, folder, manifest_sha256)
        self._ready().restore(self._folder / folder, version)

    def _ready(self) -> TrainEngine:
        if self._engine is None:
            raise InfrastructureError(f"trainer-{self._rank} was asked to work before it was loaded")
        return self._engine
