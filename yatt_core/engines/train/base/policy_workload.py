"""What all workloads share that train a language model: reading, sealing, state, weights for other engines, memory.

Consumes sealed experience or rows, of which a rank gets the samples on which it computes. Produces prepared columns, updates and
checkpoint contents. Derived classes say what is prepared and learnt. They hold no weights: those are the policy's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from yatt_core.checkpoints.contents import REFERENCE
from yatt_core.engines.train.base.batch_reader import BatchReader
from yatt_core.engines.train.base.buffers import FreezeBuffers
from yatt_core.engines.train.base.needed import needed_of
from yatt_core.engines.train.base.own_methods import verify_methods
from yatt_core.engines.train.base.policy import Policy
from yatt_core.engines.train.base.preparation import Preparation, collected_columns
from yatt_core.engines.train.base.saving import saved_parts
from yatt_core.engines.train.base.sent_parts import sent_parts
from yatt_core.engines.train.base.updating import Updated, learning_rate
from yatt_core.engines.train.model.state_files import STATE, StateFacts, read_facts
from yatt_core.engines.train.roles.sft import fine_tune
from yatt_core.engines.train.steps.batch_advantages import moments_after
from yatt_core.engines.train.steps.supervised import SupervisedStep
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns, publish_prepared
from yatt_core.protocols.engines import FrozenState, NeededTensor
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, SftReceipt
from yatt_core.wire.parts import TensorPart
from yatt_core.workloads.trained import Changed, Fingerprint, Learnt


class PolicyWorkload(ABC):
    """Implements `TrainedWorkload`, `SendsWeights` and `FreesMemory`.

    batches: reads what iterations learn from.
    buffers: with copies for the checkpoint in flight.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.batches = self._reader()
        self.buffers = FreezeBuffers()
        self._spec = policy.spec
        self._context = policy.context

    # -- what differs -------------------------------------------------------------------------------------------------

    def _reader(self) -> BatchReader:
        """Returns the reader of what iterations learn from; of sealed experience unless overridden."""
        return BatchReader(self.policy.spec, self.policy.context)

    @abstractmethod
    def _prepared(self, batch: ExperienceBatch, task: BatchTask) -> Preparation:
        """Computes this rank's columns of a batch."""

    @abstractmethod
    def _update(self, task: BatchTask, batch: ExperienceBatch, columns: PreparedColumns, changed: Changed) -> Updated:
        """Takes the iteration's optimizer steps; calls `changed` after each."""

    def _follow(self, iteration: int) -> None:
        """Makes the current policy the reference, if it is its turn."""
        if self._spec.algorithm.renews_reference(iteration):
            self.policy.renew_reference()

    def _forget(self) -> None:
        """Drops what was read and learnt for an iteration that is done, or begun in vain."""
        self.batches.finish()

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def copies_alone(self) -> bool:
        """True if nothing is gathered while weights are sent, which goes on meanwhile."""
        return not self.in_step

    def verify(self) -> None:
        """Raises as `verify_methods` does."""
        verify_methods(self._spec, self._context.run_folder)

    def connect(self, rank: int, ranks: int, address: str, changed: Changed) -> None:
        """Joins the group of ranks."""
        self.policy.connect(rank, ranks, address, changed)

    def require_ready(self) -> None:
        """Raises `InfrastructureError` without weights, or before all ranks have met."""
        policy = self.policy
        policy.loaded()
        if policy.world.ranks != policy.layout.ranks:
            raise InfrastructureError(f"the trainer is not connected to its {policy.layout.ranks} ranks")

    def begin(self) -> None:
        """Loads the initial weights, with a fresh optimizer."""
        self._forget()
        self.policy.initialise()
        self.policy.begin()

    def fine_tune(self, changed: Changed) -> SftReceipt | None:
        """Trains on the demonstrations until the probe's accuracy is reached; then resets the optimizer."""
        if self._spec.sft is None:
            return None
        started = time.perf_counter()
        changed()
        policy = self.policy
        step = SupervisedStep(
            forward=policy.forward,
            optimizer=policy.optimizer,
            collective=policy.collective,
            budget=policy.layout.budget,
            even=policy.layout.even,
        )
        result = fine_tune(
            spec=self._spec, context=self._context, step=step, probe_model=policy.probe_model, reader=policy.reader
        )
        self._forget()
        policy.begin()
        return SftReceipt(
            steps=result.steps,
            loss=result.loss,
            probe_accuracy=result.accuracy,
            seconds=time.perf_counter() - started,
            weights_digest=policy.weights_digest(),
        )

    # -- an iteration -------------------------------------------------------------------------------------------------

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Computes this rank's columns. Rank 0 gets those of all ranks, publishes them and returns the receipt."""
        policy = self.policy
        started = time.perf_counter()
        batch = self.batches.batch(task, policy.collective, policy.plans())
        loaded = time.perf_counter()
        preparation = self._prepared(batch, task)
        contents = collected_columns(self._spec, policy.collective, preparation.columns)
        if policy.world.rank > 0:
            return None
        folder, digests = publish_prepared(self._context.run_folder, task.key, task.term, contents)
        timing = {"load": loaded - started, "seconds": time.perf_counter() - started}
        moments = moments_after(task.reward_moments, batch)
        return PrepareReceipt(
            key=task.key,
            folder=folder,
            files=digests,
            metrics=preparation.metrics,
            timing=timing,
            reward_moments=moments,
            coefficients=task.coefficients,
        )

    def learn(self, task: BatchTask, prepared: PrepareReceipt, changed: Changed) -> Learnt:
        """Takes the iteration's optimizer steps. Raises `NumericError` before a step whose loss or gradient is not finite."""
        done, timing = self._taken(replace(task, coefficients=prepared.coefficients), prepared, changed)
        self._follow(task.key.iteration)
        return Learnt(done.metrics, done.fingerprint | self.policy.cheap_digests(), timing)

    def _taken(self, task: BatchTask, prepared: PrepareReceipt, changed: Changed) -> tuple[Updated, dict[str, float]]:
        """Reads what the iteration learns from and takes the steps; returns their outcome, seconds and bytes."""
        policy = self.policy
        started = time.perf_counter()
        batch = self.batches.batch(task, policy.collective, policy.plans())
        columns = self.batches.columns(prepared, policy.collective)
        loaded = time.perf_counter()
        done = self._update(task, batch, columns, changed)
        return done, {"load": loaded - started, **self.batches.finish()}

    def skip(self, iteration: int) -> Fingerprint:
        """Goes on without a step."""
        self._follow(iteration)
        digests = self.policy.cheap_digests()
        self._forget()
        return digests

    # -- state --------------------------------------------------------------------------------------------------------

    def weights_digest(self) -> str:
        """Returns the digest of the weights, on every rank."""
        return self.policy.weights_digest()

    def freeze(self, version: int) -> FrozenState:
        """Copies this rank's share into buffers that are reused. With adapters, merged weights are gathered one by one."""
        policy = self.policy
        policy.loaded()
        ranks = policy.layout.ranks
        steps = policy.steps
        critic_steps = 0 if policy.critic is None else policy.critic.steps
        parts = saved_parts(
            spec=self._spec,
            ranks=ranks,
            weights=policy.weights,
            parts=policy.parts,
            steps=steps,
            critic=policy.critic,
        )
        rank = policy.world.rank
        fill = self.buffers.fill
        moves = self._spec.algorithm.reference_interval is not None
        tensors = {name: fill(name, each, rank, changes=moves or name != REFERENCE) for name, each in parts.items()}
        facts = StateFacts(version, steps, learning_rate(self._spec, version), critic_steps)
        return FrozenState(rank, ranks, tensors, {STATE: facts.encode()} if rank == 0 else {})

    def needed(self, folder: Path) -> Iterator[NeededTensor]:
        """Yields what `load` will read."""
        if not self.policy.is_built:
            self.policy.build()
        return needed_of(folder, self._spec, self.policy.rectangles, self.policy.critic)

    def load(self, folder: Path, version: int, changed: Changed) -> None:
        """Loads what writers of `freeze` wrote; continues bit for bit under the same layout."""
        facts = read_facts(folder)
        if facts.version != version:
            raise DataError(f"{folder}: holds version {facts.version}, expected {version}")
        changed()
        self._forget()
        policy = self.policy
        policy.reload()
        if not policy.is_built:
            policy.build()
        policy.load_state(folder, facts)
        if policy.critic is not None:
            policy.critic.load(folder, facts.critic_steps)

    # -- weights for other engines, and memory ------------------------------------------------------------------------

    def stream_weights(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yields the tensors for the rollout engines, one at a time, read-only; every rank must consume all of them."""
        for name, tensor in self.policy.synced():
            array = tensor.detach().numpy()
            array.flags.writeable = False
            yield name, array

    @property
    def in_step(self) -> bool:
        """True if adapters are trained: merging them takes whole matrices."""
        return self._spec.trainer.lora is not None

    def sync_parts(self, outlines: bool = False) -> Iterator[TensorPart[Any]]:
        """Yields this rank's own parts, and its portion of those that other ranks hold too (`sent_parts`)."""
        policy = self.policy
        merged = None if outlines else policy.weights
        return sent_parts(self._spec.trainer.lora, policy.world.rank, policy.parts, merged)

    def offload(self) -> None:
        """Frees device memory, and host memory that only the next update needs; a checkpoint in flight keeps its copies."""
        if self.policy.is_at_hand:
            self._drop()
            self.buffers = FreezeBuffers()
            self.policy.offload()

    def _drop(self) -> None:
        """Drops what is kept for the next update, which can be read and computed again."""
        self.batches.drop()

    def reload(self) -> None:
        """Brings back what was offloaded."""
        self.policy.reload()
