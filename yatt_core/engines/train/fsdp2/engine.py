"""The FSDP2 trainer: one rank of GRPO over a model of transformers whose parameters, gradients and moments are shared out.

Consumes sealed experience; produces the weights of the next version. Ranks meet in every pass, so that each of them has as many
micro-batches. A snapshot holds whole tensors, and so can be loaded by any number of ranks, each taking its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from yatt_core.engines.protocol import RankContext
from yatt_core.engines.train.collective import Collective
from yatt_core.engines.train.engine import Layout
from yatt_core.engines.train.forward import EntropyUse, Float32, MicroBatch, PolicyForward, TokenLoss
from yatt_core.engines.train.fsdp2.optimizer import ShardedAdamW, Shards
from yatt_core.engines.train.fsdp2.sharding import own_rows, shard_model, sharded_modules, whole
from yatt_core.engines.train.optimizer import MOMENTS
from yatt_core.engines.train.process_group import lost_group, rank_device, require_process_group
from yatt_core.engines.train.shared import Named, SharedModelEngine
from yatt_core.engines.train.state_files import (
    ADAPTERS,
    OPTIMIZER,
    REFERENCE,
    WEIGHTS,
    StateFacts,
    TensorFile,
    require_same,
)
from yatt_core.engines.train.teacher import Teacher, load_teacher, rows_of
from yatt_core.errors import ConfigurationError
from yatt_core.spec.accelerated import Fsdp2Trainer
from yatt_core.spec.run import RunSpec


class ShardedForward(PolicyForward):
    """Passes over a sharded model: every rank makes as many. A pass without a backward pass leaves nothing gathered behind."""

    def __init__(self, model: nn.Module, temperature: float, device: torch.device, world: Collective) -> None:
        super().__init__(model, temperature, "float32", device=device)
        self._world = world

    def score(self, micro_batches: Sequence[MicroBatch]) -> list[Float32]:
        """As of `PolicyForward`."""
        with lost_group(self._world):
            found = super().score(micro_batches)
        # What stays gathered would be computed with after the weights have changed.
        for module in sharded_modules(self._model):
            module.reshard()
        return found

    def backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss: TokenLoss,
        entropy: EntropyUse = "none",
        temperature: float | None = None,
    ) -> None:
        """As of `PolicyForward`; each pass adds its gradients up over the ranks."""
        with lost_group(self._world):
            super().backward(micro_batches, loss, entropy, temperature)


class Fsdp2TrainEngine(SharedModelEngine):
    """Keeps the protocol `TrainEngine`."""

    _optimizer: ShardedAdamW

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        engine = spec.trainer.engine
        if not isinstance(engine, Fsdp2Trainer):
            raise ConfigurationError(f"trainer.engine: {engine.kind} is not the fsdp2 trainer")
        super().__init__(spec, context, Layout(engine.ranks, engine.ranks, engine.micro_batch_tokens, even=True))
        self._engine = engine

    def _divide(self) -> None:
        """Nothing: ranks are shares."""

    def _build(self) -> None:
        require_process_group(self._world)
        device = rank_device()
        model = self._loaded_model()
        shard_model(model, self._engine, self._world.ranks, device)
        self._model = model
        self._optimizer = ShardedAdamW(model, self._spec.trainer.optimizer, self._world)
        self._forward = ShardedForward(model, self._spec.rollout.temperature, device, self._world)
        if (distillation := self._spec.algorithm.distillation) is not None:
            teacher = load_teacher(distillation, self._engine.dtype)
            rows = rows_of(teacher)
            shard_model(teacher, self._engine, self._world.ranks, device)
            passes = ShardedForward(teacher, self._spec.rollout.temperature, device, self._world)
            self._teacher = Teacher(passes, rows)

    def _held(self) -> tuple[Shards, dict[str, Shards], int]:
        return self._optimizer.copy(), self._optimizer.moments, self._optimizer.steps

    def _hold(self, held: tuple[Shards, dict[str, Shards], int]) -> None:
        shards, self._optimizer.moments, self._optimizer.steps = held
        self._optimizer.put(shards)

    def _steps(self) -> int:
        return self._optimizer.steps

    def _whole(self, kind: str) -> Named:
        optimizer = self._optimizer
        known = {"weights": optimizer.everything(), "reference": self._reference, **optimizer.moments}
        for name, parameter in (optimizer.model if kind == "weights" else optimizer.named).items():
            with lost_group(self._world):
                tensor = whole(parameter, known[kind][name])
            yield name, tensor

    def _load_state(self, folder: Path, facts: StateFacts) -> None:
        optimizer = self._optimizer
        weights = TensorFile(folder / WEIGHTS)
        require_same(folder, weights.shapes, optimizer.plain_shapes())
        optimizer.put(self._rows(weights if self._spec.trainer.lora is None else TensorFile(folder / ADAPTERS)))
        optimizer.reset()
        if facts.optimizer_steps:
            moments = TensorFile(folder / OPTIMIZER)
            optimizer.moments = {kind: self._rows(moments, f"{kind}.") for kind in MOMENTS}
            optimizer.steps = facts.optimizer_steps
        if self._spec.algorithm.kl is not None:
            self._reference = self._rows(TensorFile(folder / REFERENCE))

    def _rows(self, file: TensorFile, prefix: str = "") -> Shards:
        """This rank's rows of each tensor in a file."""
        return {
            name: file.rows(f"{prefix}{name}", own_rows(parameter)).to(parameter.to_local().device)
            for name, parameter in self._optimizer.named.items()
        }
