"""The train engine of every workload with a real state: versions, idempotence, receipts; the workload does the rest.

Consumes tasks and receipts. Produces the state of the next version, and the receipts that the driver compares and keeps. What
differs by `workload.kind` or by the model is in the workload (`workloads/trained.py`), to which each call is handed over; no line
here asks which it is. An update is a function of the state, the log and the spec: there is no counter and no random state to
lose.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt

from yatt_core.engines.train.base.kept_receipt import SKIPPED, kept_receipt
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import FrozenState, NeededTensor, SendsWeights
from yatt_core.protocols.receipts import (
    BatchTask,
    PrepareReceipt,
    RowsReceipt,
    RowsTask,
    SftReceipt,
    UpdateReceipt,
)
from yatt_core.spec.run import RunSpec
from yatt_core.wire.parts import TensorPart
from yatt_core.workloads.trained import (
    Accumulates,
    Evaluates,
    FineTunes,
    FreesMemory,
    TrainedWorkload,
)


class WorkloadTrainEngine:
    """Implements `TrainEngine`, with one torch thread; all calls come from one thread.

    workload: to which everything is handed over that differs from one run to another.
    """

    workload: TrainedWorkload

    def __init__(self, spec: RunSpec, workload: TrainedWorkload) -> None:
        self.workload = workload
        self._spec = spec
        self._version = -1
        self._receipt: UpdateReceipt | None = None
        self._sft_receipt: SftReceipt | None = None

    @property
    def version(self) -> int:
        """Number of iterations learned; -1 if the state is undefined."""
        return self._version

    @property
    def applied(self) -> WorkKey | None:
        """Key of the last update or skip, which produced the state."""
        return None if self._receipt is None else self._receipt.key

    def connect(self, rank: int, ranks: int, address: str) -> None:
        """Joins the group of ranks, with the state unchanged; a group of one needs no address.

        Raises `ConfigurationError` for another number of ranks than the spec's, and as `TrainedWorkload.verify` does.
        """
        self.workload.verify()
        expected = self._spec.trainer.engine.ranks
        if ranks != expected:
            raise ConfigurationError(f"the group has {ranks} ranks, but trainer.engine.ranks is {expected}")
        version = self._version
        self.workload.connect(rank, ranks, address, self._changed)
        self._version = version

    def initialise(self) -> None:
        """Begins anew: version 0."""
        self._version = -1
        self._receipt = None
        self._sft_receipt = None
        self.workload.begin()
        self._version = 0

    def sft(self) -> SftReceipt:
        """Has the workload learn from demonstrations, if it does; the version stays 0.

        Otherwise the state stays unchanged and the receipt has 0 steps. A second call returns the receipt of the first.
        """
        self._require(0)
        if self._sft_receipt is None:
            self._sft_receipt = self._fine_tuned()
            self._version = 0
        return self._sft_receipt

    def _fine_tuned(self) -> SftReceipt:
        done = self.workload.fine_tune(self._changed) if isinstance(self.workload, FineTunes) else None
        if done is not None:
            return done
        digest = self.weights_digest()
        return SftReceipt(steps=0, loss=0.0, probe_accuracy=0.0, seconds=0.0, weights_digest=digest)

    def accumulate(self, task: BatchTask) -> float:
        """Learns from the task's parts of an iteration, unless that is done, or the update is, or the workload takes it whole."""
        if self._version == task.key.iteration or not isinstance(self.workload, Accumulates):
            return 0.0
        self._require(task.key.iteration - 1)
        return self.workload.accumulate(task)

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Has the iteration's columns made and sealed. Rank 0 gets those of all ranks, and returns the receipt."""
        self._require(task.key.iteration - 1)
        return self.workload.prepare(task)

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Makes the iteration's update; a second call only returns the receipt.

        Raises `NumericError` for a loss, a gradient or a metric that is not finite, `InfrastructureError` unless the state has
        the version before the iteration.
        """
        if (kept := kept_receipt(self._receipt, self._version, task, skipped=False)) is not None:
            return kept
        self._require(task.key.iteration - 1)
        started = time.perf_counter()
        learnt = self.workload.learn(task, prepared, self._changed)
        self._version = task.key.iteration
        self._receipt = UpdateReceipt(
            key=task.key,
            version=self._version,
            metrics=learnt.metrics,
            fingerprint=learnt.fingerprint,
            timing={**learnt.timing, "seconds": time.perf_counter() - started},
        )
        return self._receipt

    def evaluate(self, task: RowsTask) -> RowsReceipt:
        """Evaluates the state on held-out data; changes nothing.

        Raises `ConfigurationError` for a workload whose controllers evaluate.
        """
        self._require(task.key.iteration)
        if not isinstance(self.workload, Evaluates):
            raise ConfigurationError(f"workload.kind: {self._spec.workload.title} is evaluated by its controllers")
        return self.workload.evaluate(task)

    def skip(self, task: BatchTask) -> UpdateReceipt:
        """Advances to the task's version without learning; a second call only returns the receipt."""
        if (kept := kept_receipt(self._receipt, self._version, task, skipped=True)) is not None:
            return kept
        self._require(task.key.iteration - 1)
        fingerprint: dict[str, float | str] = {SKIPPED: 1.0, **self.workload.skip(task.key.iteration)}
        self._version = task.key.iteration
        self._receipt = UpdateReceipt(
            key=task.key, version=self._version, metrics={}, fingerprint=fingerprint, timing={}
        )
        return self._receipt

    def stream_weights(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yields the tensors for the rollout engines, one at a time, read-only; every rank must consume all of them."""
        return self._sender().stream_weights()

    @property
    def in_step(self) -> bool:
        """Whether ranks gather what they send; True too if nothing is sent."""
        return not isinstance(self.workload, SendsWeights) or self.workload.in_step

    @property
    def copies_alone(self) -> bool:
        """Whether a rank can copy its state for a checkpoint by itself."""
        return self.workload.copies_alone

    def sync_parts(self, outlines: bool = False) -> Iterator[TensorPart[Any]]:
        """Yields this rank's own parts, and its portion of those that other ranks hold too."""
        return self._sender().sync_parts(outlines)

    def weights_digest(self) -> str:
        """Returns the digest of the weights, on every rank."""
        return self.workload.weights_digest()

    def offload(self) -> None:
        """Frees device memory, and host memory that only the next update needs; a checkpoint in flight keeps its copies."""
        if isinstance(self.workload, FreesMemory):
            self.workload.offload()

    def reload(self) -> None:
        """Brings back what was offloaded."""
        if isinstance(self.workload, FreesMemory):
            self.workload.reload()

    def freeze_state(self) -> FrozenState:
        """Copies this rank's share into buffers that are reused."""
        if self._version < 0:
            raise InfrastructureError("the trainer's weights are undefined: there is nothing to save")
        return self.workload.freeze(self._version)

    def needed(self, folder: Path) -> Iterator[NeededTensor]:
        """Yields what `restore` will read."""
        return self.workload.needed(folder)

    def restore(self, folder: Path, version: int) -> None:
        """Loads what a writer of `freeze_state` wrote; continues bit for bit under the same layout."""
        self.workload.load(folder, version, self._changed)
        self._version = version
        self._receipt = None
        self._sft_receipt = None

    def _sender(self) -> SendsWeights:
        if not isinstance(self.workload, SendsWeights):
            raise InfrastructureError(f"the workload {self._spec.workload.title} has no rollout engines")
        return self.workload

    def _changed(self) -> None:
        """Marks the state as undefined until the call that changes it is complete."""
        self._version = -1

    def _require(self, version: int) -> None:
        self.workload.require_ready()
        if self._version != version:
            raise InfrastructureError(f"the trainer holds version {self._version}, expected {version}")
