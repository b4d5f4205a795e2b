"""What all trainers with a real model share: versions, idempotence, the steps of an iteration, checkpoint contents.

Consumes sealed experience, of which a rank gets the samples on which it computes; produces the weights of the next version.
Engines derived from `PolicyTrainEngine` decide whether tensors are whole or sharded over ranks. An update is
a function of the weights, the log and the spec: there is no counter and no random state to lose.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from yatt_core.checkpoints.contents import REFERENCE
from yatt_core.engines.adapters import is_adapter, plain_weights, share_of
from yatt_core.engines.device import own_device, repeat_bits
from yatt_core.engines.host_memory import keep_freed_memory
from yatt_core.engines.images import ImageReader
from yatt_core.engines.offload import HeldMemory, Offloaded
from yatt_core.engines.train.base.accumulation import Accumulation, Passes
from yatt_core.engines.train.base.batch_reader import BatchReader
from yatt_core.engines.train.base.buffers import FreezeBuffers
from yatt_core.engines.train.base.kept_receipt import SKIPPED, kept_receipt
from yatt_core.engines.train.base.layout import Layout
from yatt_core.engines.train.base.learned_batch import load_held_out
from yatt_core.engines.train.base.needed import Rectangles, needed_of
from yatt_core.engines.train.base.objective_work import ObjectiveWork, ScoredRows
from yatt_core.engines.train.base.own_methods import verify_methods
from yatt_core.engines.train.base.preparation import Preparation, Preparer, collected_columns
from yatt_core.engines.train.base.saving import saved_parts
from yatt_core.engines.train.base.updating import Update, Updated, learning_rate
from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.model.state_files import STATE, StateFacts, read_facts
from yatt_core.engines.train.ranks.by_all import by_all
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.time_limits import state_bytes
from yatt_core.engines.train.roles.critic import Critic
from yatt_core.engines.train.roles.sft import fine_tune
from yatt_core.engines.train.roles.teacher import Teachers
from yatt_core.engines.train.steps.batch_advantages import moments_after
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.engines.train.steps.supervised import SupervisedStep
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns, publish_prepared
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import FrozenState, NeededTensor, RankContext
from yatt_core.protocols.receipts import (
    BatchTask,
    PrepareReceipt,
    RowsReceipt,
    RowsTask,
    SftReceipt,
    UpdateReceipt,
)
from yatt_core.spec.run import RunSpec
from yatt_core.wire.parts import TensorPart, contributed

CHEAP_DIGEST_PARAMETERS = 50_000_000
"""Up to this number of parameters, the weights' digest is part of every update's fingerprint."""


class PolicyTrainEngine(ABC):
    """Implements `TrainEngine`, with one torch thread; all calls come from one thread.

    `_build` must set `_forward` and `_optimizer`, and `_teachers` and `_critic` if the spec has them.

    _world: all ranks.
    _collective: the ranks over which samples are distributed; its rank is the index of this rank's part.
    """

    _forward: TokenPasses
    _optimizer: PolicyOptimizer

    def __init__(self, spec: RunSpec, context: RankContext, layout: Layout) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._device = own_device()
        if spec.is_exact:
            repeat_bits(self._device)
        self._spec = spec
        self._context = context
        self._layout = layout
        self._world = self._collective = Collective()
        self._version = -1
        self._receipt: UpdateReceipt | None = None
        self._sft_receipt: SftReceipt | None = None
        self._batches = BatchReader(spec, context)
        self._accumulation = Accumulation(spec, context)
        self._held_out: ScoredRows | None = None
        self._reference: Any = None
        self._teachers: Teachers | None = None
        self._critic: Critic | None = None
        self._reader: ImageReader | None = None
        self._buffers = FreezeBuffers()
        self._model: nn.Module | None = None
        self._away: Offloaded | None = None

    # -- what differs -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _build(self) -> None:
        """Builds the model with its initial weights, its passes and its optimizer."""

    @abstractmethod
    def parts(self, kind: str) -> Iterator[TensorPart[torch.Tensor]]:
        """Yields this rank's parts of the tensors as they are held: nothing is gathered, sent, or moved to the host.

        kind: `weights`, `reference` or a moment's name; moments have the names of their parameters. With low-rank
            adapters, weights are matrices and adapters, each under its own name.

        Values are mostly views that the next update overwrites.
        """

    @abstractmethod
    def _tensors(self, ordered: bool = False) -> Iterable[tuple[str, torch.Tensor]]:
        """Yields all tensors of the model, a tied one once; whole and on the CPU on rank 0. All ranks must iterate.

        ordered: whether they come sorted by name, or in whichever order is fastest.
        """

    @abstractmethod
    def _steps(self) -> int:
        """Returns the number of steps that the optimizer has taken since its last reset."""

    @abstractmethod
    def _load_state(self, folder: Path, facts: StateFacts) -> None:
        """Loads a checkpoint's weights, moments and reference. Raises `DataError` if they do not match this model.

        Reads only what this rank holds.
        """

    def _rectangles(self, kind: str) -> Rectangles | None:
        """Returns what `_load_state` reads of the tensors of a kind (see `parts`); None if it reads all of them."""
        return None

    @abstractmethod
    def _probe_model(self) -> nn.Module:
        """Returns a transformers model with the current weights, with which this rank can decode by itself."""

    @abstractmethod
    def _memory(self) -> HeldMemory:
        """Returns what this rank holds on its device from one update to the next."""

    def _weights(self, ordered: bool = False) -> Iterable[tuple[str, torch.Tensor]]:
        """Yields all weights under Hugging Face names, as `_tensors` does, merged with the adapters."""
        lora = self._spec.trainer.lora
        return self._tensors(ordered) if lora is None else plain_weights(self._tensors(ordered), share_of(lora))

    def weights_digest(self) -> str:
        """Returns the digest of the weights, on every rank."""
        return self._digest_of(self._weights(ordered=True))

    @abstractmethod
    def _digest_of(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
        """Returns the digest of tensors sorted by name, none of which is kept; all ranks must call it."""

    def _adapters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Yields the adapters, as `_tensors` does."""
        return (one for one in self._tensors() if is_adapter(one[0]))

    def _synced(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Yields the tensors to send to the rollout engines."""
        lora = self._spec.trainer.lora
        return self._weights() if lora is None or lora.sync == "merged" else self._adapters()

    # -- the protocol -------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Number of iterations learned; -1 if the weights are undefined."""
        return self._version

    @property
    def applied(self) -> WorkKey | None:
        """Key of the last update or skip, which produced the weights."""
        return None if self._receipt is None else self._receipt.key

    def connect(self, rank: int, ranks: int, address: str) -> None:
        """Joins the group of ranks; a group of one needs no address. Raises as `verify_methods` does."""
        verify_methods(self._spec, self._context.run_folder)
        if ranks != self._layout.ranks:
            raise ConfigurationError(f"the group has {ranks} ranks, but trainer.engine.ranks is {self._layout.ranks}")
        self._world.connect(
            rank=rank,
            ranks=ranks,
            address=address,
            device=self._device,
            held=state_bytes(Path(self._context.model_path)),
        )

    def initialise(self) -> None:
        """Loads the initial weights from the model's folder; version 0."""
        self._version = -1
        self._sft_receipt = None
        self._away = None
        self._build()
        self._begin()

    def sft(self) -> SftReceipt:
        """Trains on the demonstrations until the probe's accuracy is reached; then resets the optimizer.

        Without supervised fine-tuning in the spec, the weights stay unchanged and the receipt has 0 steps.
        Runs once: a second call returns the receipt of the first.
        """
        self._require(0)
        if self._sft_receipt is None:
            self._sft_receipt = self._sft()
        return self._sft_receipt

    def _sft(self) -> SftReceipt:
        started = time.perf_counter()
        if self._spec.sft is None:
            return SftReceipt(steps=0, loss=0.0, probe_accuracy=0.0, seconds=0.0, weights_digest=self.weights_digest())
        self._version = -1
        step = SupervisedStep(
            forward=self._forward,
            optimizer=self._optimizer,
            collective=self._collective,
            budget=self._layout.budget,
            even=self._layout.even,
        )
        result = fine_tune(
            spec=self._spec, context=self._context, step=step, probe_model=self._probe_model, reader=self._reader
        )
        self._begin()
        seconds = time.perf_counter() - started
        return SftReceipt(
            steps=result.steps,
            loss=result.loss,
            probe_accuracy=result.accuracy,
            seconds=seconds,
            weights_digest=self.weights_digest(),
        )

    def accumulate(self, task: BatchTask) -> float:
        """Prepares the task's shards and adds up their gradients, unless that is done, or the update is."""
        if self._version == task.key.iteration:
            return 0.0
        self._require(task.key.iteration - 1)
        return self._accumulation.add(task, self._passes())

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Computes this rank's columns. Rank 0 gets those of all ranks, publishes them and returns the receipt."""
        self._require(task.key.iteration - 1)
        if self._spec.asynchrony.streamed:
            return self._accumulation.prepare(task, self._passes())
        started = time.perf_counter()
        batch = self._batches.batch(task, self._collective, self._plans())
        loaded = time.perf_counter()
        preparation = self._prepared(batch, task)
        contents = collected_columns(self._spec, self._collective, preparation.columns)
        if self._world.rank > 0:
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

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Takes the iteration's optimizer steps; a second call only returns the receipt.

        Raises `NumericError` before a step whose loss or gradient is not finite, `InfrastructureError` unless
        the weights have the version before the iteration.
        """
        if (kept := kept_receipt(self._receipt, self._version, task, skipped=False)) is not None:
            return kept
        self._require(task.key.iteration - 1)
        started = time.perf_counter()
        task = replace(task, coefficients=prepared.coefficients)
        if self._spec.asynchrony.streamed:
            done, timing = self._accumulation.take(task, self._passes(), self._changed)
        else:
            batch = self._batches.batch(task, self._collective, self._plans())
            columns = self._batches.columns(prepared, self._collective)
            loaded = time.perf_counter()
            done = self._update(task, batch, columns)
            timing = {"load": loaded - started, **self._batches.finish()}
        self._follow(task.key.iteration)
        fingerprint = done.fingerprint | self._cheap_digest()
        self._receipt = UpdateReceipt(
            key=task.key,
            version=task.key.iteration,
            metrics=done.metrics,
            fingerprint=fingerprint,
            timing={**timing, "seconds": time.perf_counter() - started},
        )
        self._version = task.key.iteration
        return self._receipt

    def evaluate(self, task: RowsTask) -> RowsReceipt:
        """Scores the held-out rows with the current weights, and, the first time, with the reference's."""
        self._require(task.key.iteration)
        work = self._objective_work()
        if self._held_out is None:
            rows = by_all(self._world, lambda: load_held_out(self._spec, self._context))
            self._held_out = work.score_reference(rows, self._reference)
        return RowsReceipt(task.key, len(self._held_out.batch.group_offsets) - 1, work.evaluate(self._held_out))

    def skip(self, task: BatchTask) -> UpdateReceipt:
        """Advances to the task's version without a step; a second call only returns the receipt."""
        if (kept := kept_receipt(self._receipt, self._version, task, skipped=True)) is not None:
            return kept
        self._require(task.key.iteration - 1)
        self._follow(task.key.iteration)
        self._receipt = UpdateReceipt(
            key=task.key,
            version=task.key.iteration,
            metrics={},
            fingerprint={SKIPPED: 1.0} | self._cheap_digest(),
            timing={},
        )
        self._forget()
        self._version = task.key.iteration
        return self._receipt

    def stream_weights(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yields the tensors for the rollout engines, one at a time, read-only; every rank must consume all of them."""
        for name, tensor in self._synced():
            array = tensor.detach().numpy()
            array.flags.writeable = False
            yield name, array

    @property
    def direct_sync(self) -> bool:
        """True unless adapters are trained: merging them takes whole matrices."""
        return self._spec.trainer.lora is None

    def sync_parts(self) -> Iterator[TensorPart[torch.Tensor]]:
        """Yields this rank's own parts, and its portion of those that other ranks hold too."""
        return contributed(self.parts("weights"), self._world.rank)

    def offload(self) -> None:
        """Frees device memory, and host memory that only the next update needs; a checkpoint in flight keeps its copies."""
        if self._model is not None and self._away is None:
            self._batches.drop()
            self._accumulation.drop()
            self._buffers = FreezeBuffers()
            self._away = Offloaded(self._memory())

    def reload(self) -> None:
        """Brings back what was offloaded."""
        if self._away is not None:
            self._away.bring_back()
            self._away = None

    def freeze_state(self) -> FrozenState:
        """Copies this rank's share into buffers that are reused. With adapters, merged weights are gathered one by one."""
        if self._version < 0:
            raise InfrastructureError("the trainer's weights are undefined: there is nothing to save")
        self._loaded()
        ranks = self._layout.ranks
        steps = self._steps()
        critic_steps = 0 if self._critic is None else self._critic.steps
        parts = saved_parts(
            spec=self._spec, ranks=ranks, weights=self._weights, parts=self.parts, steps=steps, critic=self._critic
        )
        rank = self._world.rank
        fill = self._buffers.fill
        moves = self._spec.algorithm.reference_interval is not None
        tensors = {name: fill(name, each, rank, changes=moves or name != REFERENCE) for name, each in parts.items()}
        facts = StateFacts(self._version, steps, learning_rate(self._spec, self._version), critic_steps)
        return FrozenState(rank, ranks, tensors, {STATE: facts.encode()} if rank == 0 else {})

    def needed(self, folder: Path) -> Iterator[NeededTensor]:
        """Yields what `restore` will read."""
        if self._model is None:
            self._build()
        return needed_of(folder, self._spec, self._rectangles, self._critic)

    def restore(self, folder: Path, version: int) -> None:
        """Loads what a writer of `freeze_state` wrote; continues bit for bit under the same layout."""
        facts = read_facts(folder)
        if facts.version != version:
            raise DataError(f"{folder}: holds version {facts.version}, expected {version}")
        self._version = -1
        self._forget()
        self.reload()
        if self._model is None:
            self._build()
        self._load_state(folder, facts)
        if self._critic is not None:
            self._critic.load(folder, facts.critic_steps)
        self._version = version
        self._receipt = None
        self._sft_receipt = None
        self._held_out = None

    # -- what an update needs ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Sets version 0: current weights, fresh optimizer, a KL term's reference, and the critic if there is one."""
        self._optimizer.reset()
        self._forget()
        self._held_out = None
        if self._spec.keeps_reference:
            self._reference = self._optimizer.copy()
        if self._critic is not None:
            self._critic.begin(self._weights())
        self._version = 0
        self._receipt = None

    def _prepared(self, batch: ExperienceBatch, task: BatchTask) -> Preparation:
        if self._spec.objective is not None:
            return self._objective_work().prepare(batch, self._reference)
        critic = None if self._critic is None else self._critic.passes
        preparer = Preparer(
            spec=self._spec,
            forward=self._forward,
            optimizer=self._optimizer,
            collective=self._collective,
            teachers=self._teachers,
            critic=critic,
        )
        return preparer.prepare(batch, self._plans().shape, self._reference, task)

    def _plans(self) -> Plans:
        return Plans(self._spec, self._layout.shape(self._spec))

    def _objective_work(self) -> ObjectiveWork:
        return ObjectiveWork(self._plans(), self._forward, self._optimizer, self._collective)

    def _passes(self) -> Passes:
        return Passes(
            plans=self._plans(),
            forward=self._forward,
            optimizer=self._optimizer,
            collective=self._collective,
            prepare=self._prepared,
        )

    def _update(self, task: BatchTask, batch: ExperienceBatch, columns: PreparedColumns) -> Updated:
        if self._spec.objective is not None:
            return self._objective_work().update(task.key, batch, columns, self._changed)
        update = Update(
            spec=self._spec,
            plans=self._plans(),
            forward=self._forward,
            optimizer=self._optimizer,
            collective=self._collective,
            critic=self._critic,
        )
        return update.take(key=task.key, batch=batch, columns=columns, state=task.coefficients, changed=self._changed)

    def _forget(self) -> None:
        """Drops what was read and learnt for an iteration that is done, or begun in vain."""
        self._batches.finish()
        self._accumulation.drop()

    def _follow(self, iteration: int) -> None:
        """Makes the current policy the reference, if it is its turn."""
        if self._spec.algorithm.renews_reference(iteration):
            self._reference = self._optimizer.copy()

    def _changed(self) -> None:
        """Marks the weights as undefined until the update is complete."""
        self._version = -1

    def _cheap_digest(self) -> dict[str, float | str]:
        found: dict[str, float | str] = {}
        if self._optimizer.parameters <= CHEAP_DIGEST_PARAMETERS:
            found["weights_digest"] = self.weights_digest()
        if self._critic is not None and self._critic.optimizer.parameters <= CHEAP_DIGEST_PARAMETERS:
            found["critic_digest"] = self._digest_of(self._critic.tensors())
        return found

    def _loaded(self) -> nn.Module:
        """Returns the model with everything back on its device; all computation goes through here."""
        if self._model is None:
            raise InfrastructureError("the trainer has no weights yet: initialise or restore it first")
        self.reload()
        return self._model

    def _require(self, version: int) -> None:
        self._loaded()
        if self._version != version:
            raise InfrastructureError(f"the trainer holds version {self._version}, expected {version}")
        if self._world.ranks != self._layout.ranks:
            raise InfrastructureError(f"the trainer is not connected to its {self._layout.ranks} ranks")
