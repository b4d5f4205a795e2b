"""A train engine without a model: its weights are a hash chain over the experience it learned from.

Consumes an iteration's sealed experience and the columns that the engine itself prepared; produces weights, receipts
and state like a real trainer, after configured durations. A lost, duplicated or changed sample shows in every
later weights digest. Its ranks need no group: each computes the same state, and rank 0 writes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from yatt_core.algorithms.moments import scaled
from yatt_core.digests import weights_digest as digest_of
from yatt_core.engines.train.base.kept_receipt import SKIPPED, kept_receipt
from yatt_core.engines.train.base.own_methods import verify_methods
from yatt_core.engines.train.steps.batch_advantages import batch_advantages, moments_after, shaped_batch
from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.engines.virtual.shard_chain import ShardChain
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.experience.admission import admitted_batch, admitted_table, load_admitted_batch
from yatt_core.experience.batch import batch_of_table, load_table
from yatt_core.experience.prepared import PreparedColumns, read_prepared, write_prepared
from yatt_core.experience.table import group_digests
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import FrozenState, NeededTensor, RankContext, Tensors
from yatt_core.protocols.receipts import (
    BatchTask,
    PrepareReceipt,
    RowsReceipt,
    RowsTask,
    SftReceipt,
    UpdateReceipt,
)
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.trainer import VirtualTrainer
from yatt_core.wire.parts import TensorPart

STATE_FILE = "state.safetensors"

_RANGES = {
    "loss": (-0.05, 0.05),
    "grad_norm": (0.1, 2.0),
    "entropy": (0.1, 3.0),
    "clip_fraction": (0.0, 0.2),
    "ratio_max": (1.0, 1.5),
    "ratio_min": (0.5, 1.0),
}


class VirtualTrainEngine:
    """One logical rank of the virtual trainer."""

    def __init__(self, spec: RunSpec, context: RankContext, clock: ScaledClock | None = None) -> None:
        engine = spec.trainer.engine
        if not isinstance(engine, VirtualTrainer):
            raise ConfigurationError(f"trainer.engine.kind is {engine.kind}, expected virtual")
        self._spec = spec
        self._engine = engine
        self._context = context
        self._clock = clock or ScaledClock(engine.clock_factor)
        self._rank = 0
        self._version = -1
        self._state = b""
        self._receipt: UpdateReceipt | None = None
        self._sft_receipt: SftReceipt | None = None
        self._chain = ShardChain(spec, context)

    @property
    def version(self) -> int:
        """Number of iterations learned; -1 before `initialise` or `restore`."""
        return self._version

    @property
    def applied(self) -> WorkKey | None:
        """Key of the last update or skip."""
        return None if self._receipt is None else self._receipt.key

    def connect(self, rank: int, ranks: int, address: str) -> None:
        """Takes its rank; there is no group to join. Raises as `verify_methods` does."""
        verify_methods(self._spec, self._context.run_folder)
        self._rank = rank

    def initialise(self) -> None:
        """Sets the state derived from the run's seed; version 0."""
        self._state = hashlib.sha256(f"yatt.virtual.weights:{self._spec.seed}".encode()).digest()
        self._version = 0
        self._receipt = None
        self._sft_receipt = None

    def sft(self) -> SftReceipt:
        """Adds one link to the chain; a second call adds none. Raises `InfrastructureError` unless at version 0."""
        started = time.perf_counter()
        self._require(0, "run SFT")
        if self._sft_receipt is not None:
            return self._sft_receipt
        self._state = hashlib.sha256(self._state + b"warm_up").digest()
        self._clock.spend(self._engine.fixed_seconds)
        accuracy = 0.0 if self._spec.sft is None else self._spec.sft.stop_accuracy
        seconds = time.perf_counter() - started
        self._sft_receipt = SftReceipt(
            steps=1, loss=1.0, probe_accuracy=accuracy, seconds=seconds, weights_digest=self.weights_digest()
        )
        return self._sft_receipt

    def accumulate(self, task: BatchTask) -> float:
        """Adds links to the chain of shards, in the time that learning from them takes."""
        started = time.perf_counter()
        if self._version == task.key.iteration:
            return 0.0
        self._require(task.key.iteration - 1, f"accumulate {task.key}")
        self._clock.spend(self._engine.seconds_per_token * self._chain.add(task))
        return time.perf_counter() - started

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Writes the advantages. Raises `InfrastructureError` unless at the version before the task's."""
        started = time.perf_counter()
        self._require(task.key.iteration - 1, f"prepare {task.key}")
        if self._rank != 0:
            return None
        self._context.fetch(task.shards)
        batch = shaped_batch(self._spec, load_admitted_batch(self._context.run_folder, task))
        loaded = time.perf_counter()
        algorithm = self._spec.algorithm
        rewards, metrics = scaled(batch.rewards, task.reward_moments, algorithm.reward_scaling, algorithm.epsilon)
        found = batch_advantages(
            spec=self._spec, batch=batch, rewards=rewards, branch=task.key.branch, iteration=task.key.iteration
        )
        columns = PreparedColumns(
            ordinals=batch.ordinals,
            samples=batch.samples,
            advantages=found.samples,
            response_offsets=batch.response_offsets,
            token_advantages=found.tokens,
        )
        folder, files = write_prepared(self._context.run_folder, task.key, task.term, [columns])
        moments = moments_after(task.reward_moments, batch)
        timing = {"load": loaded - started, "seconds": time.perf_counter() - started}
        return PrepareReceipt(
            key=task.key,
            folder=folder,
            files=files,
            metrics=metrics,
            timing=timing,
            reward_moments=moments,
            coefficients=task.coefficients,
        )

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Adds the iteration's link; if already at its version, returns the earlier receipt."""
        started = time.perf_counter()
        iteration = task.key.iteration
        if (kept := kept_receipt(self._receipt, self._version, task, skipped=False)) is not None:
            return kept
        self._require(iteration - 1, f"learn {task.key}")
        if self._spec.asynchrony.streamed:
            tokens = self._chain.complete(task)
            counted = self._chain.counted
            learnt = self._chain.digest
            self._chain.drop()
        else:
            self._context.fetch(task.shards)
            sealed = load_table(self._context.run_folder, task.shards)
            counts = shaped_batch(self._spec, admitted_batch(batch_of_table(sealed), task.admission)).loss_mask
            columns = read_prepared(self._context.run_folder, prepared.folder, prepared.files)
            tokens = len(counts)
            counted = int(np.count_nonzero(counts))
            learnt = group_digests(admitted_table(sealed, task.admission)) + _columns_digest(columns)
        loaded = time.perf_counter()
        self._state = hashlib.sha256(self._state + learnt).digest()
        self._version = iteration
        self._clock.spend(self._engine.fixed_seconds + self._engine.seconds_per_token * tokens)
        metrics = {**_synthetic_metrics(self._state), "tokens": float(counted)}
        fingerprint: dict[str, float | str] = {
            "loss": metrics["loss"],
            "grad_norm": metrics["grad_norm"],
            "weights_digest": self.weights_digest(),
        }
        timing = {"load": loaded - started, "seconds": time.perf_counter() - started}
        self._receipt = UpdateReceipt(
            key=task.key, version=iteration, metrics=metrics, fingerprint=fingerprint, timing=timing
        )
        return self._receipt

    def evaluate(self, task: RowsTask) -> RowsReceipt:
        """Raises `ConfigurationError`: specs with virtual engines have no objective."""
        raise ConfigurationError(f"trainer.engine.kind: a virtual trainer cannot score rows for {task.key}")

    def skip(self, task: BatchTask) -> UpdateReceipt:
        """Advances to the task's version with the state unchanged; a second call only returns the receipt."""
        if (kept := kept_receipt(self._receipt, self._version, task, skipped=True)) is not None:
            return kept
        self._require(task.key.iteration - 1, f"skip {task.key}")
        self._version = task.key.iteration
        self._chain.drop()
        fingerprint: dict[str, float | str] = {SKIPPED: 1.0, "weights_digest": self.weights_digest()}
        self._receipt = UpdateReceipt(
            key=task.key, version=self._version, metrics={}, fingerprint=fingerprint, timing={}
        )
        return self._receipt

    def stream_weights(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yields the only tensor."""
        yield from self._weights().items()

    @property
    def in_step(self) -> bool:
        """True: its few bytes are copied at once, and engines hold nothing of them but their digest."""
        return True

    @property
    def copies_alone(self) -> bool:
        """False: its state is copied in no time."""
        return False

    def sync_parts(self, outlines: bool = False) -> Iterator[TensorPart[Any]]:
        """Yields nothing: its weights are no tensors of torch, and virtual engines take their digest (`WeightSync`)."""
        yield from ()

    def _weights(self) -> Tensors:
        """Returns the only tensor, `state`: 32 bytes."""
        if self._version < 0:
            raise InfrastructureError("the virtual trainer has no weights before initialise or restore")
        return {"state": np.frombuffer(self._state, np.uint8).copy()}

    def offload(self) -> None:
        """Does nothing: there is no memory to release."""

    def reload(self) -> None:
        """Does nothing: nothing was offloaded."""

    def freeze_state(self) -> FrozenState:
        """Returns the contents of `state.safetensors`, written by rank 0: the chain's state and the version."""
        tensors = {**self._weights(), "version": np.array([self._version], np.int64)}
        files = {STATE_FILE: safetensors.numpy.save(tensors)} if self._rank == 0 else {}
        return FrozenState(
            rank=self._rank, ranks=self._engine.ranks, tensors={}, files=files, weights_digest=self.weights_digest()
        )

    def needed(self, folder: Path) -> Iterator[NeededTensor]:
        """Yields nothing: its only file is not one of tensor parts."""
        yield from ()

    def restore(self, folder: Path, version: int) -> None:
        """Loads a state. Raises `DataError` for an invalid file or another version."""
        path = folder / STATE_FILE
        try:
            tensors: dict[str, npt.NDArray[Any]] = safetensors.numpy.load_file(path)
            state = tensors["state"].tobytes()
            found = int(tensors["version"][0])
        except (OSError, KeyError, safetensors.SafetensorError) as error:
            raise DataError(f"{path}: is not a virtual trainer's state: {error!r}") from error
        if found != version:
            raise DataError(f"{path}: holds version {found}, expected version {version}")
        self._state = state
        self._chain.drop()
        self._version = version
        self._receipt = None
        self._sft_receipt = None

    def _require(self, version: int, work: str) -> None:
        if self._version != version:
            raise InfrastructureError(
                f"the virtual trainer is at version {self._version}; to {work}, it must be at version {version}"
            )

    def weights_digest(self) -> str:
        """Returns the digest of its only tensor."""
        return digest_of(self._weights())


def _columns_digest(columns: PreparedColumns) -> bytes:
    """Returns the sha256 of the prepared samples and advantages, those of tokens included, in canonical order."""
    digest = hashlib.sha256()
    for array, dtype in ((columns.ordinals, "<i8"), (columns.samples, "<i4"), (columns.advantages, "<f8")):
        digest.update(np.ascontiguousarray(array, dtype=dtype).data)
    if columns.token_advantages is not None:
        digest.update(np.ascontiguousarray(columns.token_advantages, dtype="<f4").data)
    return digest.digest()


def _synthetic_metrics(state: bytes) -> dict[str, float]:
    """Derives a number in each metric's usual range from the state."""
    shares = np.frombuffer(state, "<u4") / 2.0**32
    return {
        name: low + (high - low) * float(share)
        for (name, (low, high)), share in zip(_RANGES.items(), shares, strict=False)
    }
