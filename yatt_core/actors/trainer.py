"""The Ray actor of one rank of a train engine: fences its callers, sends weights, publishes checkpoints.

Consumes tasks that name sealed experience; produces receipts, weights for the rollout engines, and checkpoints. Imports
torch only where it is used, so that the driver and virtual actors never load it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import ray
from ray.util import get_node_ip_address

from yatt_core.actors.holdings import own_holdings
from yatt_core.actors.leftovers import Leftovers
from yatt_core.actors.presence import Presence
from yatt_core.actors.transfers import TransferEnd
from yatt_core.actors.use_meter import MemoryMeter, ProcessUse, UseMeter
from yatt_core.checkpoints.needed import Spans, bring_index, bring_needed, needed_folder, needed_spans
from yatt_core.checkpoints.spread import bring_checkpoint
from yatt_core.checkpoints.verify import listed_files, verify_checkpoint
from yatt_core.checkpoints.writer import CheckpointIdentity, CheckpointWriter
from yatt_core.engines.environment import environment_facts
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.sync.sent_weights import SentWeights
from yatt_core.engines.train.ranks.rendezvous import hold_address
from yatt_core.errors import InfrastructureError
from yatt_core.experience.prepared import pack_prepared, prepared_is_whole, receive_prepared
from yatt_core.input_building.settling import settle_inputs
from yatt_core.keys import WorkKey, checkpoint_folder
from yatt_core.logs import actor_logs, log_context
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.protocols.receipts import (
    ActorIdentity,
    BatchTask,
    CheckpointReceipt,
    InputsReceipt,
    PrepareReceipt,
    RowsReceipt,
    RowsTask,
    SftReceipt,
    UpdateReceipt,
)
from yatt_core.protocols.transfers import HeldWeights, TransferTask
from yatt_core.spec import RunSpec
from yatt_core.spec.weights import type_sent
from yatt_core.storage.lacking import fetch_lacking
from yatt_core.storage.run_store import open_store


class Touched(Enum):
    """What a call does to the tensors of this rank, some of which may be being copied for a checkpoint."""

    CHANGED = "changed"
    MOVED = "moved"
    LEFT = "left"
    """The call may be served beside the copy."""


@dataclass(frozen=True, slots=True)
class RankState:
    """The state of a rank.

    version: version of its weights; -1 while they are undefined, or before SFT or a restore.
    applied: key of the last update.
    group: address of the group it has joined; empty if it is in no group or its group has failed.
    host: address of its node in the cluster.
    node: Ray's id of its node.
    """

    version: int
    applied: WorkKey | None
    group: str
    checkpoint_in_flight: bool
    host: str
    node: str = ""


class TrainerActor:
    """One logical rank. Calls are served one at a time, in the order of arrival."""

    def __init__(self, spec_json: str, run_folder: str, rank: int, term: int) -> None:
        self._spec = RunSpec.model_validate_json(spec_json)
        self._folder = Path(run_folder)
        self._rank = rank
        self._engine: TrainEngine | None = None
        self._group = self._model_path = ""
        self._settled = False
        self._store = open_store(self._spec, self._folder)
        self._use = UseMeter()
        self._memory = MemoryMeter()
        patience = self._spec.recovery.phase_deadline_seconds
        self._checkpoints = CheckpointWriter(self._folder, self._store, patience)
        self._identity = actor_logs(self._folder, f"trainer-{rank}", term)
        self._presence = Presence(self._identity.name, term, self._spec.recovery.grace_seconds)
        self._transfers = TransferEnd(self._identity.name, self._presence)
        self._sent = SentWeights() if self._spec.trainer.sync == "delta" else None

    def materialise(self, term: int) -> InputsReceipt:
        """Verifies the run's inputs."""
        with self._serving("materialise", term, Touched.LEFT):
            return settle_inputs(self._spec, self._folder, self._store)

    def load(self, term: int, inputs: InputsReceipt, branch: int) -> ActorIdentity:
        """Builds the engine for the run's inputs unless it exists."""
        with self._serving("load", term, Touched.LEFT):
            if self._engine is None:
                context = RankContext(
                    run_folder=self._folder,
                    inputs_folder=self._folder / inputs.folder,
                    model_path=inputs.model_path,
                    branch=branch,
                    fetch=partial(fetch_lacking, self._store, self._folder),
                )
                self._engine = build_train_engine(self._spec, context)
                self._model_path = inputs.model_path
        kind = self._spec.trainer.engine.kind
        own = self._identity
        return ActorIdentity(
            name=own.name, pid=own.pid, node=own.node, engine=kind, capabilities={}, holds=own_holdings()
        )

    def standing(self, term: int) -> RankState:
        """Returns the rank's state after all earlier calls."""
        with self._serving("standing", term, Touched.LEFT):
            engine = self._ready()
            in_flight = self._checkpoints.in_flight
            node = ray.get_runtime_context().get_node_id()
            host = get_node_ip_address()
            return RankState(
                version=self._engine_version(),
                applied=engine.applied,
                group=self._group,
                checkpoint_in_flight=in_flight,
                host=host,
                node=node,
            )

    def process_use(self, term: int) -> ProcessUse:
        """Returns how busy the device was since the last call, and what the process and its children hold."""
        with self._presence.serving("process_use", term):
            return ProcessUse(self._use.read(), self._memory.read(), self._presence.times.take())

    def environment(self) -> dict[str, str]:
        """Returns what a replay depends on besides the log: library versions, instruction set, threads, kernels."""
        return environment_facts(self._spec, self._model_path)

    def rendezvous(self, host: str) -> str:
        """Returns where the ranks may meet: a port of one of this node's addresses, served by this rank."""
        return hold_address(host)

    def connect(self, term: int, ranks: int, address: str) -> None:
        """Joins the group of ranks."""
        with self._serving("connect", term):
            self._ready().connect(self._rank, ranks, address)
            self._group = address

    def initialise(self, term: int) -> None:
        """Loads the initial weights."""
        with self._serving("initialise", term):
            self._settled = False
            self._ready().initialise()

    def sft(self, term: int) -> SftReceipt:
        """Runs supervised fine-tuning on the demonstrations; a second call returns the receipt of the first."""
        with self._serving("sft", term), log_context(iteration=0, phase="sft"):
            receipt = self._ready().sft()
            self._settled = True
            return receipt

    def accumulate(self, task: BatchTask) -> float:
        """Prepares an iteration's first shards and adds up their gradients; returns the seconds of this rank's work."""
        with self._serving("accumulate", task.term), log_context(iteration=task.key.iteration, phase="collect"):
            return self._ready().accumulate(task)

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Computes old and reference log-probabilities and advantages."""
        with self._serving("prepare", task.term), log_context(iteration=task.key.iteration, phase="prepare"):
            return self._ready().prepare(task)

    def prepared_is_whole(self, receipt: PrepareReceipt) -> bool:
        """Returns True if all prepared columns exist and match their digests."""
        return prepared_is_whole(self._folder, receipt.folder, receipt.files)

    def pack_prepared(self, receipt: PrepareReceipt) -> dict[str, bytes]:
        """Returns the prepared columns for nodes that lack them; nothing once they have been learned from."""
        if self._ready().version >= receipt.key.iteration:
            return {}
        return pack_prepared(self._folder, receipt.folder, receipt.files)

    def receive_prepared(self, term: int, receipt: PrepareReceipt, packed: dict[str, bytes]) -> None:
        """Writes what `pack_prepared` returned to this node's disk, for all ranks of the node."""
        with self._serving("receive_prepared", term, Touched.LEFT):
            if packed:
                receive_prepared(self._folder, receipt.folder, receipt.files, packed)

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Takes the iteration's optimizer steps."""
        with self._serving("learn", task.term), log_context(iteration=task.key.iteration, phase="learn"):
            return self._ready().learn(task, prepared)

    def evaluate(self, task: RowsTask) -> RowsReceipt:
        """Scores the held-out rows."""
        with self._serving("evaluate", task.term), log_context(iteration=task.key.iteration, phase="evaluate"):
            return self._holding(task.key.iteration).evaluate(task)

    def skip(self, task: BatchTask) -> UpdateReceipt:
        """Advances to the iteration's version without an optimizer step."""
        with self._serving("skip", task.term), log_context(iteration=task.key.iteration, phase="learn"):
            return self._ready().skip(task)

    def offload(self, term: int) -> None:
        """Frees memory on the device for other roles."""
        with self._serving("offload", term, Touched.MOVED):
            self._ready().offload()

    def reload(self, term: int) -> None:
        """Brings offloaded tensors back to the device."""
        with self._serving("reload", term, Touched.MOVED):
            self._ready().reload()

    def host(self) -> str:
        """Returns the address of this actor's node in the cluster."""
        return self._transfers.host()

    def serve_transfers(self, term: int, host: str) -> str:
        """Starts a meeting of ranks and engines at an address of this node; returns where they may meet."""
        with self._presence.serving("serve_transfers", term):
            return self._transfers.serve(host)

    def send(self, term: int, task: TransferTask) -> int:
        """Sends this rank's part of a version's weights to engines; returns the bytes sent.

        A failure concerns the transfer alone: the rank stays in the group with which it learns.
        """
        from yatt_core.engines.sync.sending import send_weights

        with self._presence.serving("send", term), self._transfers.group(task) as group:
            engine = self._holding(task.version)
            return send_weights(
                group=group,
                task=task,
                parts=engine.sync_parts,
                rounded_to=type_sent(self._spec),
                most_bytes=self._spec.trainer.sync_bucket_bytes,
                sent=self._sent,
            )

    def sent_weights(self, term: int) -> str:
        """Returns the name of the transfer whose weights this rank has kept as the base for deltas; empty if there is none."""
        with self._presence.serving("sent_weights", term):
            return "" if self._sent is None else self._sent.name

    def held_weights(self, term: int) -> HeldWeights:
        """Returns digests of what this rank contributes to the weights, rounded to the engines' type."""
        with self._presence.serving("held_weights", term):
            engine = self._ready()
            version = self._engine_version()
            if version < 0 or engine.in_step:
                return HeldWeights(version, None)
            from yatt_core.engines.rectangles import part_digests

            return HeldWeights(version, part_digests(engine.sync_parts(), type_sent(self._spec)))

    def weights_digest(self, term: int, version: int) -> str:
        """Returns the digest of a version's weights; every rank must be called."""
        with self._serving("weights_digest", term, Touched.LEFT):
            return self._holding(version).weights_digest()

    def _engine_version(self) -> int:
        return self._ready().version if self._settled else -1

    def _holding(self, version: int) -> TrainEngine:
        """Returns the engine. Raises `InfrastructureError` unless it holds a version."""
        engine = self._ready()
        if engine.version != version:
            raise InfrastructureError(f"trainer-{self._rank} holds version {engine.version}, not {version}")
        return engine

    def copy_ahead(self, term: int, version: int) -> None:
        """Begins to copy this rank's share of the next checkpoint, beside calls that only read.

        Does nothing if all ranks must take part in the copy.
        """
        with self._serving("copy_ahead", term, Touched.LEFT):
            engine = self._holding(version)
            if engine.copies_alone:
                engine.reload()
                self._checkpoints.copy_ahead(engine.freeze_state)

    def begin_checkpoint(
        self, term: int, run: str, branch: int, audit_head: str, attempt: int, apart: bool = False
    ) -> None:
        """Has every rank copy and write its share in the background; rank 0 publishes them all.

        Calls that would change what is copied wait for the copy. Adapters are merged by all ranks together, and so
        copied before this method returns.

        attempt: number of this attempt among those of the term and branch; the same on all ranks.
        apart: whether ranks have disks of their own, so that each sends its share to the durable tier.
        """
        with self._serving("begin_checkpoint", term, Touched.LEFT):
            engine = self._ready()
            if not self._checkpoints.copied_ahead:
                engine.reload()  # here, since the thread that copies must not move tensors
            identity = CheckpointIdentity(
                run=run,
                branch=branch,
                iteration=engine.version,
                term=term,
                spec_digest=self._spec.digest,
                weights_digest="",
                audit_head=audit_head,
                attempt=attempt,
            )
            folder = str(checkpoint_folder(branch, engine.version, term))
            self._checkpoints.begin(
                folder=folder,
                attempt=f"{attempt:06}",
                identity=identity,
                freeze=engine.freeze_state,
                apart=apart,
                at_once=not engine.copies_alone,
            )

    def checkpoint_result(self, wait_seconds: float) -> CheckpointReceipt | None:
        """Returns the last checkpoint's receipt, only once and on rank 0; None while it is being written.

        Raises the error with which this rank's share, or on rank 0 the checkpoint, failed.
        """
        return self._checkpoints.wait(wait_seconds) if wait_seconds else self._checkpoints.poll()

    def bring_checkpoint(self, term: int, folder: str, manifest_sha256: str, renew: bool) -> None:
        """Fetches a checkpoint's files that this node's disk lacks, or with `renew` also those that are damaged."""
        with self._serving("bring_checkpoint", term, Touched.LEFT):
            bring_checkpoint(
                store=self._store, run_folder=self._folder, folder=folder, manifest_sha256=manifest_sha256, renew=renew
            )

    def tidy(self, term: int, leftovers: Leftovers) -> None:
        """Deletes files of this node's disk that the run no longer needs."""
        with self._serving("tidy", term, Touched.LEFT):
            leftovers.remove(self._folder)

    def verify_checkpoint(self, term: int, folder: str, manifest_sha256: str, number: int, readers: int) -> None:
        """Verifies one reader's share of a checkpoint's files against the ledger's digest."""
        with self._serving("verify_checkpoint", term, Touched.LEFT):
            verify_checkpoint(
                run_folder=self._folder, folder=folder, manifest_sha256=manifest_sha256, number=number, readers=readers
            )

    def needed(self, term: int, folder: str, manifest_sha256: str) -> Spans | None:
        """Returns which blocks of a checkpoint's files this rank needs; None if the checkpoint can only be read whole."""
        with self._serving("needed", term):
            place = bring_index(self._store, self._folder, folder, manifest_sha256)
            return None if place is None else needed_spans(place, self._ready().needed(place))

    def bring_needed(self, term: int, folder: str, spans: Spans) -> int:
        """Makes blocks of a checkpoint's files readable on this disk; returns the bytes that were fetched."""
        with self._serving("bring_needed", term):
            return bring_needed(self._store, self._folder, folder, spans)

    def restore(self, term: int, folder: str, manifest_sha256: str, version: int, partly: bool = False) -> None:
        """Loads a checkpoint that the ranks of this node have verified together.

        partly: whether the node has only the blocks that its ranks need.
        """
        with self._serving("restore", term):
            if partly:
                self._ready().restore(needed_folder(self._folder, folder), version)
            else:
                listed_files(self._folder, folder, manifest_sha256)
                self._ready().restore(self._folder / folder, version)
            self._settled = True

    @contextmanager
    def _serving(self, method: str, term: int, tensors: Touched = Touched.CHANGED) -> Iterator[None]:
        """Registers a call in progress. If it fails, the ranks may have diverged, so this rank leaves the group.

        A call that may change or move tensors waits until they have been copied for a checkpoint.

        tensors: what the call does to them.
        """
        with self._presence.serving(method, term):
            if tensors is not Touched.LEFT:
                self._checkpoints.finish_copy(changes=tensors is Touched.CHANGED)
            try:
                yield
            except InfrastructureError:
                self._group = ""
                raise

    def _ready(self) -> TrainEngine:
        if self._engine is None:
            raise InfrastructureError(f"trainer-{self._rank} was called before it was loaded")
        return self._engine
