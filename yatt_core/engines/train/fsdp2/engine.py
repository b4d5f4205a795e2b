"""The FSDP2 trainer: one rank of GRPO over a transformers model with sharded parameters, gradients and moments.

Consumes sealed experience, and folders of models, of which each rank reads only its own rows; produces the weights of
the next version. Ranks meet in every pass, so all of them have the same number of micro-batches. Each rank writes its
own rows of every tensor to a checkpoint, and reads its own rows from one, whichever engine and layout has written it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from yatt_core.checkpoints.contents import ADAPTERS, OPTIMIZER, REFERENCE, WEIGHTS, open_tensors
from yatt_core.engines.adapters import add_adapters
from yatt_core.engines.offload import HeldMemory, together
from yatt_core.engines.train.base.layout import Layout
from yatt_core.engines.train.base.shared_model import Named, SharedModelEngine
from yatt_core.engines.train.fsdp2.critic import ShardedCritic
from yatt_core.engines.train.fsdp2.forward import ShardedForward
from yatt_core.engines.train.fsdp2.loading import load_sharded
from yatt_core.engines.train.fsdp2.optimizer import OptimizerState, ShardedAdamW, Shards
from yatt_core.engines.train.fsdp2.sharding import Sharding, sharded_memory, whole
from yatt_core.engines.train.model.state_files import StateFacts, require_same
from yatt_core.engines.train.ranks.process_group import lost_group, require_process_group
from yatt_core.engines.train.roles.critic import exchange_head
from yatt_core.engines.train.roles.teacher import Teacher, Teachers, rows_of
from yatt_core.errors import ConfigurationError
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import Fsdp2Trainer
from yatt_core.wire.parts import Box, TensorPart


class Fsdp2TrainEngine(SharedModelEngine):
    """Implements `TrainEngine`."""

    _optimizer: ShardedAdamW

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        engine = spec.trainer.engine
        if not isinstance(engine, Fsdp2Trainer):
            raise ConfigurationError(f"trainer.engine: {engine.kind} is not the fsdp2 trainer")
        super().__init__(spec, context, Layout(engine.ranks, engine.ranks, engine.micro_batch_tokens, even=True))
        self._engine = engine

    def _divide(self) -> None:
        """Does nothing: each rank is its own part."""

    def _build(self) -> None:
        require_process_group(self._world)
        device = self._device
        lora = self._spec.trainer.lora
        how = Sharding(self._engine, self._world.ranks, device)
        values = self._spec.trains_reward_model
        change = (
            exchange_head
            if values
            else None
            if lora is None
            else partial(add_adapters, spec=lora, seed=self._spec.seed)
        )
        with lost_group(self._world):
            self._model = model = load_sharded(self._context.model_path, "float32", how, change)
        self._optimizer = ShardedAdamW(model, self._spec.trainer.optimizer, self._world)
        self._forward = ShardedForward(model, self._spec.trainer_temperature, how, self._world, values=values)
        if (distillation := self._spec.algorithm.distillation) is not None and distillation.teachers:
            self._teachers = Teachers(distillation, partial(self._load_teacher, how))
        if (critic := self._spec.critic) is not None:
            self._critic = ShardedCritic(critic, self._context.model_path, how, self._world)

    def _load_teacher(self, how: Sharding, path: str) -> Teacher:
        freeze = partial(nn.Module.requires_grad_, requires_grad=False)
        with lost_group(self._world):
            model = load_sharded(path, dtype=self._engine.dtype, how=how, change=freeze)
        rows = rows_of(model)
        return Teacher(model, ShardedForward(model, self._spec.trainer_temperature, how, self._world), rows)

    def _held(self) -> list[OptimizerState]:
        return [optimizer.held() for optimizer in self._optimizers()]

    def _hold(self, held: list[OptimizerState]) -> None:
        for optimizer, one in zip(self._optimizers(), held, strict=True):
            optimizer.hold(one)

    def _optimizers(self) -> list[ShardedAdamW]:
        """Returns the policy's optimizer and, after it, the critic's if there is one."""
        critic = self._critic
        return [self._optimizer, critic.optimizer] if isinstance(critic, ShardedCritic) else [self._optimizer]

    def _memory(self) -> HeldMemory:
        models = [self._loaded(), *([] if self._teachers is None else self._teachers.modules)]
        reference = HeldMemory(tuple((self._reference or {}).values()))
        parts = [HeldMemory(tuple(sharded_memory(model))) for model in models]
        parts += [] if self._critic is None else [self._critic.memory()]
        return together(self._optimizer.memory(), reference, *parts)

    def _steps(self) -> int:
        return self._optimizer.steps

    def parts(self, kind: str) -> Iterator[TensorPart[torch.Tensor]]:
        """See `PolicyTrainEngine`."""
        self._loaded()
        return self._optimizer.parts(self._shards(kind))

    def _shards(self, kind: str) -> Shards:
        """Returns this rank's rows. kind: as in `parts`."""
        optimizer = self._optimizer
        known = {"weights": optimizer.everything(), "reference": self._reference, **optimizer.moments}
        found: Shards = known[kind]
        return found

    def _whole(self, ordered: bool) -> Named:
        model = self._optimizer.model
        shards = self._optimizer.everything()
        for name in sorted(model) if ordered else model:
            with lost_group(self._world):
                tensor = whole(model[name], shards[name])
            yield name, tensor

    def _rectangles(self, kind: str) -> Iterator[tuple[str, Box]]:
        return self._optimizer.rectangles()

    def _load_state(self, folder: Path, facts: StateFacts) -> None:
        optimizer = self._optimizer
        weights = open_tensors(folder, WEIGHTS)
        require_same(folder, weights.shapes, optimizer.plain_shapes())
        trained = weights if self._spec.trainer.lora is None else open_tensors(folder, ADAPTERS)
        optimizer.load(trained, optimizer.locals())
        optimizer.load_moments(folder, OPTIMIZER, facts.optimizer_steps)
        if self._spec.keeps_reference:
            self._reference = optimizer.loaded(open_tensors(folder, REFERENCE))
