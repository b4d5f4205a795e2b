"""The torch trainer: one logical rank of data-parallel GRPO over a Hugging Face model.

Consumes sealed experience, which every rank reads for itself; produces the weights of the next version, the same bits on
every rank. Ranks meet only to add up gradients and sums. What an update does is a function of the weights, the log and the
spec: there is no counter and no random state to lose.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from yatt_core.algorithms.schedule import learning_rate_share
from yatt_core.data.admission import load_admitted_batch
from yatt_core.data.batch import ExperienceBatch
from yatt_core.data.inputs import Inputs
from yatt_core.data.prepared import PreparedColumns, publish_prepared, read_prepared, write_rank
from yatt_core.data.text import open_codec
from yatt_core.digests import weights_digest
from yatt_core.engines.dense.shape import why_general
from yatt_core.engines.images import open_reader
from yatt_core.engines.protocol import FrozenState, RankContext, Tensors
from yatt_core.engines.rollout.loading import load_causal_lm
from yatt_core.engines.train.batch_advantages import moments_behind
from yatt_core.engines.train.collective import Collective
from yatt_core.engines.train.dense_passes import DensePasses, neighbours_of
from yatt_core.engines.train.forward import PolicyForward
from yatt_core.engines.train.learner import GrpoLearner, update_metrics
from yatt_core.engines.train.optimizer import FlatAdamW
from yatt_core.engines.train.passes import TokenPasses
from yatt_core.engines.train.plan import PlanShape, plan_digest, plan_steps
from yatt_core.engines.train.preparation import Preparer, has_token_columns
from yatt_core.engines.train.receipts import SKIPPED, kept_receipt
from yatt_core.engines.train.state_files import StateFacts, TrainerState, read_state
from yatt_core.engines.train.warmup import WarmUp
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.keys import WorkKey
from yatt_core.receipts import BatchTask, PrepareReceipt, UpdateReceipt, WarmupReceipt
from yatt_core.spec.run import RunSpec
from yatt_core.spec.trainer import TorchTrainer

CHEAP_DIGEST_PARAMETERS = 50_000_000
"""Up to this size the weights' digest is part of every update's fingerprint."""


class TorchTrainEngine:
    """Keeps the protocol `TrainEngine`. One thread of torch; all calls come from one thread."""

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        if not isinstance(spec.trainer.engine, TorchTrainer):
            raise ConfigurationError(f"trainer.engine: {spec.trainer.engine.kind} is not the torch trainer")
        torch.set_num_threads(1)
        self._spec, self._engine_spec, self._context = spec, spec.trainer.engine, context
        self._collective = Collective()
        self._version = -1
        self._receipt: UpdateReceipt | None = None
        self._warmed: WarmupReceipt | None = None
        self._batch: tuple[BatchTask, ExperienceBatch] | None = None
        self._reference: torch.Tensor | None = None
        self._buffers: dict[str, dict[str, Any]] = {}
        self._model: nn.Module | None = None

    @property
    def version(self) -> int:
        """Number of iterations learnt; -1 when the weights are undefined."""
        return self._version

    @property
    def applied(self) -> WorkKey | None:
        """Key of the last update or skip that the weights came from."""
        return None if self._receipt is None else self._receipt.key

    def connect(self, rank: int, ranks: int, address: str) -> None:
        """Joins the group of ranks; a group of one needs no address."""
        if ranks != self._engine_spec.ranks:
            raise ConfigurationError(f"a group of {ranks} ranks: trainer.engine.ranks is {self._engine_spec.ranks}")
        self._collective.connect(rank, ranks, address)

    def initialise(self) -> None:
        """Loads the initial weights from the model's folder; version 0."""
        self._version, self._warmed = -1, None
        self._build()
        self._begin()

    def warm_up(self) -> WarmupReceipt:
        """Trains on the demonstrations until the probe is answered well enough; then the optimizer starts afresh.

        Without a warm-up in the spec the weights stay as they are, and the receipt says no steps. Done once: a second call
        returns the receipt of the first.
        """
        self._require(0)
        if self._warmed is None:
            self._warmed = self._warm_up()
        return self._warmed

    def _warm_up(self) -> WarmupReceipt:
        started = time.perf_counter()
        if self._spec.warmup is None:
            return WarmupReceipt(0, 0.0, 0.0, 0.0, weights_digest(self.export_weights()))
        codec = open_codec(self._spec, self._context.model_path)
        inputs = Inputs.open(self._context.inputs_folder, self._spec)
        model, self._version = self._loaded(), -1
        warm_up = WarmUp(self._spec, model, self._forward, self._optimizer, self._collective, codec, self._reader)
        result = warm_up.run(inputs)
        self._begin()
        seconds = time.perf_counter() - started
        digest = weights_digest(self.export_weights())
        return WarmupReceipt(result.steps, result.loss, result.accuracy, seconds, digest)

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Writes this rank's columns; rank 0 publishes them once all have written, and returns the receipt."""
        self._require(task.key.iteration - 1)
        started = time.perf_counter()
        batch = self._load(task)
        loaded = time.perf_counter()
        preparer = Preparer(self._spec, self._forward, self._optimizer, self._collective)
        budget = self._engine_spec.micro_batch_tokens
        preparation = preparer.prepare(batch, budget, self._engine_spec.packed, self._reference, task)
        files = self._collective.ranks if has_token_columns(self._spec) else 1
        if self._collective.rank < files:
            write_rank(self._context.run_folder, task.key, task.epoch, self._collective.rank, preparation.columns)
        self._collective.barrier()
        if self._collective.rank > 0:
            return None
        folder, digests = publish_prepared(self._context.run_folder, task.key, task.epoch, files)
        timing = {"load": loaded - started, "seconds": time.perf_counter() - started}
        moments = moments_behind(task.reward_moments, batch)
        return PrepareReceipt(task.key, folder, digests, preparation.metrics, timing, moments)

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Applies the iteration's optimizer steps, once.

        Raises `NumericError` before a step whose loss or gradient is not finite, `InfrastructureError` when the weights are
        of another version than the one before the iteration.
        """
        if (kept := kept_receipt(self._receipt, self._version, task, skipped=False)) is not None:
            return kept
        self._require(task.key.iteration - 1)
        started = time.perf_counter()
        batch = self._load(task)
        columns = self._columns(batch, prepared)
        loaded = time.perf_counter()
        receipt = self._update(task, batch, columns)
        timing = {"load": loaded - started, "seconds": time.perf_counter() - started}
        self._receipt = UpdateReceipt(receipt.key, receipt.version, receipt.metrics, receipt.fingerprint, timing)
        self._version, self._batch = task.key.iteration, None
        return self._receipt

    def skip(self, task: BatchTask) -> UpdateReceipt:
        """Goes to the task's version without a step, once."""
        if (kept := kept_receipt(self._receipt, self._version, task, skipped=True)) is not None:
            return kept
        self._require(task.key.iteration - 1)
        self._receipt = UpdateReceipt(task.key, task.key.iteration, {}, {SKIPPED: 1.0} | self._cheap_digest(), {})
        self._version, self._batch = task.key.iteration, None
        return self._receipt

    def export_weights(self) -> Tensors:
        """Views of the state dict, tied tensors once; read-only, and of this version until the next update."""
        exported: dict[str, Any] = {}
        seen: set[tuple[int, torch.Size]] = set()
        for name, tensor in self._loaded().state_dict().items():
            identity = (tensor.data_ptr(), tensor.shape)
            if identity not in seen or not tensor.numel():
                seen.add(identity)
                exported[name] = tensor.detach().numpy()
                exported[name].flags.writeable = False
        return exported

    def freeze_state(self) -> FrozenState:
        """Copies weights, moments and facts into buffers that are kept for the next time: new pages cost more than the copy."""
        if self._version < 0:
            raise InfrastructureError("the trainer's weights are undefined: there is nothing to keep")
        moments, steps = self._optimizer.moments()
        reference = None if self._reference is None else self._optimizer.named(self._reference)
        state = TrainerState(
            facts=StateFacts(self._version, steps, self._learning_rate(self._version)),
            weights=self._copied("weights", self.export_weights()),
            moments=self._copied("moments", {name: tensor.numpy() for name, tensor in moments.items()}),
            reference=None if reference is None else {name: tensor.numpy() for name, tensor in reference.items()},
        )
        return FrozenState(state.weights, state.write)

    def _copied(self, part: str, arrays: Tensors) -> dict[str, Any]:
        """Copies of the arrays in this part's buffers."""
        buffers = self._buffers.setdefault(part, {})
        for name, array in arrays.items():
            if name not in buffers:
                buffers[name] = np.empty_like(array)
            np.copyto(buffers[name], array)
        return {name: buffers[name] for name in arrays}

    def restore(self, folder: Path, version: int) -> None:
        """Takes over what a writer of `freeze_state` wrote; goes on bit for bit."""
        state = read_state(folder, with_reference=self._spec.algorithm.kl is not None)
        if state.facts.version != version:
            raise DataError(f"{folder}: holds version {state.facts.version}, wanted is {version}")
        self._version = -1
        if self._model is None:
            self._build()
        self._load_weights(folder, state)
        moments = {name: torch.from_numpy(array) for name, array in state.moments.items()}
        self._optimizer.load_moments(moments, state.facts.optimizer_steps)
        if state.reference is not None:
            self._reference = torch.zeros_like(self._optimizer.gradients)
            for name, view in self._optimizer.named(self._reference).items():
                view.copy_(torch.from_numpy(state.reference[name]))
        self._version, self._receipt, self._batch, self._warmed = version, None, None, None

    def _build(self) -> None:
        """The model with its initial weights, and what computes on it."""
        self._model = load_causal_lm(self._context.model_path, "float32")
        fast = self._engine_spec.path == "auto" and not why_general(self._model)
        neighbours = neighbours_of(self._model) if fast else ()
        self._optimizer = FlatAdamW(self._model, self._spec.trainer.optimizer, neighbours)
        self._reader = open_reader(self._model, self._context.model_path, self._context.inputs_folder)
        temperature, dtype = self._spec.rollout.temperature, self._engine_spec.dtype
        self._forward: TokenPasses = (
            DensePasses(self._model, self._optimizer, temperature, dtype)
            if fast
            else PolicyForward(self._model, temperature, dtype, self._reader)
        )
        self._learner = GrpoLearner(self._spec, self._forward, self._optimizer, self._collective)

    def _begin(self) -> None:
        """Version 0: these weights, a fresh optimizer, and the reference where there is a KL term."""
        self._optimizer.reset()
        if self._spec.algorithm.kl is not None:
            self._reference = self._optimizer.values.detach().clone()
        self._version, self._receipt, self._batch = 0, None, None

    def _update(self, task: BatchTask, batch: ExperienceBatch, columns: PreparedColumns) -> UpdateReceipt:
        algorithm, iteration = self._spec.algorithm, task.key.iteration
        shape = PlanShape(
            self._engine_spec.ranks,
            self._engine_spec.micro_batch_tokens,
            algorithm.epochs,
            algorithm.mini_batches,
            self._engine_spec.packed,
        )
        steps = plan_steps(batch.lengths, batch.group_offsets, shape, self._spec.seed, task.key.branch, iteration)
        learning_rate = self._learning_rate(iteration)
        sums, norms = [], []
        for step in steps:
            sums.append(self._learner.gradients(batch, columns, step))
            norms.append(self._optimizer.apply(learning_rate, sums[-1].sums["loss"]))
            self._version = -1
        metrics = update_metrics(self._spec, sums, norms) | {"learning_rate": learning_rate}
        fingerprint: dict[str, float | str] = {
            "loss": metrics["loss"],
            "grad_norm": metrics["grad_norm"],
            "plan": plan_digest(steps),
        }
        return UpdateReceipt(task.key, iteration, metrics, fingerprint | self._cheap_digest(), {})

    def _cheap_digest(self) -> dict[str, float | str]:
        small = self._optimizer.values.numel() <= CHEAP_DIGEST_PARAMETERS
        return {"weights_digest": weights_digest(self.export_weights())} if small else {}

    def _learning_rate(self, iteration: int) -> float:
        trainer = self._spec.trainer
        share = learning_rate_share(trainer.schedule, max(iteration, 1), self._spec.iterations)
        return trainer.optimizer.learning_rate * share

    def _load(self, task: BatchTask) -> ExperienceBatch:
        """The task's batch; sealed shards never change, so that `learn` takes the one that `prepare` read."""
        kept = None if self._batch is None else (self._batch[0].shards, self._batch[0].admission)
        if self._batch is None or kept != (task.shards, task.admission):
            self._batch = (task, load_admitted_batch(self._context.run_folder, task))
        return self._batch[1]

    def _columns(self, batch: ExperienceBatch, prepared: PrepareReceipt) -> PreparedColumns:
        """The prepared columns, checked to be of the batch's samples and to hold what the spec needs."""
        columns = read_prepared(self._context.run_folder, prepared.folder, prepared.files)
        same = np.array_equal(columns.ordinals, batch.ordinals) and np.array_equal(columns.samples, batch.samples)
        if not same or not np.array_equal(columns.response_offsets, batch.response_offsets):
            raise DataError(f"{prepared.folder}: its samples are not those of the experience")
        if columns.log_probs_old is None and self._spec.optimizer_steps_per_iteration > 1:
            raise DataError(f"{prepared.folder}: has no log_probs_old, which several steps need")
        if columns.log_probs_ref is None and self._spec.algorithm.kl is not None:
            raise DataError(f"{prepared.folder}: has no log_probs_ref, which the KL term needs")
        return columns

    def _load_weights(self, folder: Path, state: TrainerState) -> None:
        own = self._loaded().state_dict()
        expected = self.export_weights()
        wrong = [name for name, array in expected.items() if state.weights.get(name, array[:0]).shape != array.shape]
        if wrong or set(state.weights) != set(expected):
            names = wrong or sorted(set(state.weights) ^ set(expected))
            raise DataError(f"{folder}: its weights are not those of this model: {', '.join(names[:5])}")
        with torch.no_grad():
            for name, array in state.weights.items():
                own[name].copy_(torch.from_numpy(array))

    def _loaded(self) -> nn.Module:
        if self._model is None:
            raise InfrastructureError("the trainer has no weights yet: initialise or restore it first")
        return self._model

    def _require(self, version: int) -> None:
        self._loaded()
        if self._version != version:
            raise InfrastructureError(f"the trainer holds version {self._version}, wanted is {version}")
        if self._collective.ranks != self._engine_spec.ranks:
            raise InfrastructureError(f"the trainer is not connected to its {self._engine_spec.ranks} ranks")
