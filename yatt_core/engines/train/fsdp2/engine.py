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
from yatt_core.engines.train.base.policy_engine import PolicyTrainEngine
from yatt_core.engines.train.base.shared_model import Named, SharedPolicy
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


class Fsdp2Policy(SharedPolicy):
    """A model of which each rank has its rows."""

    optimizer: ShardedAdamW

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        engine = spec.trainer.engine
        if not isinstance(engine, Fsdp2Trainer):
            raise ConfigurationError(f"trainer.engine: {engine.kind} is not the fsdp2 trainer")
        super().__init__(spec, context, Layout(engine.ranks, engine.ranks, engine.micro_batch_tokens, even=True))
        self._engine = engine

    def _divide(self) -> None:
        """Does nothing: each rank is its own part."""

    def build(self) -> None:
        require_process_group(self.world)
        device = self.device
        lora = self.spec.trainer.lora
        how = Sharding(self._engine, self.world.ranks, device)
        values = self.spec.trains_reward_model
        change = (
            exchange_head if values else None if lora is None else partial(add_adapters, spec=lora, seed=self.spec.seed)
        )
        with lost_group(self.world):
            self._model = model = load_sharded(self.context.model_path, "float32", how, change)
        self.optimizer = ShardedAdamW(model, self.spec.trainer.optimizer, self.world)
        self.forward = ShardedForward(model, self.spec.trainer_temperature, how, self.world, values=values)
        if (distillation := self.spec.algorithm.distillation) is not None and distillation.teachers:
            self.teachers = Teachers(distillation, partial(self._load_teacher, how))
        if (critic := self.spec.critic) is not None:
            self.critic = ShardedCritic(critic, self.context.model_path, how, self.world)

    def _load_teacher(self, how: Sharding, path: str) -> Teacher:
        freeze = partial(nn.Module.requires_grad_, requires_grad=False)
        with lost_group(self.world):
            model = load_sharded(path, dtype=self._engine.dtype, how=how, change=freeze)
        rows = rows_of(model)
        return Teacher(model, ShardedForward(model, self.spec.trainer_temperature, how, self.world), rows)

    def _held(self) -> list[OptimizerState]:
        return [optimizer.held() for optimizer in self._optimizers()]

    def _hold(self, held: list[OptimizerState]) -> None:
        for optimizer, one in zip(self._optimizers(), held, strict=True):
            optimizer.hold(one)

    def _optimizers(self) -> list[ShardedAdamW]:
        """Returns the policy's optimizer and, after it, the critic's if there is one."""
        critic = self.critic
        return [self.optimizer, critic.optimizer] if isinstance(critic, ShardedCritic) else [self.optimizer]

    def memory(self) -> HeldMemory:
        models = [self.loaded(), *([] if self.teachers is None else self.teachers.modules)]
        reference = HeldMemory(tuple((self.reference or {}).values()))
        parts = [HeldMemory(tuple(sharded_memory(model))) for model in models]
        parts += [] if self.critic is None else [self.critic.memory()]
        return together(self.optimizer.memory(), reference, *parts)

    @property
    def steps(self) -> int:
        """See `Policy`."""
        return self.optimizer.steps

    def parts(self, kind: str) -> Iterator[TensorPart[torch.Tensor]]:
        """See `Policy`."""
        self.loaded()
        return self.optimizer.parts(self._shards(kind))

    def _shards(self, kind: str) -> Shards:
        """Returns this rank's rows. kind: as in `parts`."""
        optimizer = self.optimizer
        known = {"weights": optimizer.everything(), "reference": self.reference, **optimizer.moments}
        found: Shards = known[kind]
        return found

    def _whole(self, ordered: bool) -> Named:
        model = self.optimizer.model
        shards = self.optimizer.everything()
        for name in sorted(model) if ordered else model:
            with lost_group(self.world):
                tensor = whole(model[name], shards[name])
            yield name, tensor

    def rectangles(self, kind: str) -> Iterator[tuple[str, Box]]:
        return self.optimizer.rectangles()

    def load_state(self, folder: Path, facts: StateFacts) -> None:
        optimizer = self.optimizer
        weights = open_tensors(folder, WEIGHTS)
        require_same(folder, weights.shapes, optimizer.plain_shapes())
        trained = weights if self.spec.trainer.lora is None else open_tensors(folder, ADAPTERS)
        optimizer.load(trained, optimizer.locals())
        optimizer.load_moments(folder, OPTIMIZER, facts.optimizer_steps)
        if self.spec.keeps_reference:
            self.reference = optimizer.loaded(open_tensors(folder, REFERENCE))


class Fsdp2TrainEngine(PolicyTrainEngine):
    """Implements `TrainEngine`."""

    policy: Fsdp2Policy

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        super().__init__(Fsdp2Policy(spec, context))
