"""The critic of the FSDP2 trainer: sharded over the ranks like the policy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from yatt_core.checkpoints.contents import CRITIC, CRITIC_OPTIMIZER, open_tensors
from yatt_core.engines.offload import HeldMemory, together
from yatt_core.engines.train.fsdp2.forward import ShardedForward
from yatt_core.engines.train.fsdp2.loading import load_sharded
from yatt_core.engines.train.fsdp2.optimizer import ShardedAdamW
from yatt_core.engines.train.fsdp2.sharding import Sharding, sharded_memory, whole
from yatt_core.engines.train.model.state_files import require_same
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import lost_group
from yatt_core.engines.train.roles.critic import Critic, Named, load_critic
from yatt_core.sharded_rows import own_rows
from yatt_core.spec.sections.algorithm import CriticSpec
from yatt_core.wire.parts import Box, TensorPart


class ShardedCritic(Critic):
    """A critic; each rank holds some rows of every parameter."""

    def __init__(self, spec: CriticSpec, policy_path: str, how: Sharding, world: Collective) -> None:
        with lost_group(world):
            model, head = load_critic(spec, policy_path, partial(load_sharded, how=how))
        super().__init__(spec, head)
        self._model = model
        self._world = world
        self.optimizer: ShardedAdamW = ShardedAdamW(model, spec.optimizer, world)
        self.passes = ShardedForward(model, 1.0, how, world, values=True)

    def take(self, policy: Named) -> None:
        """See `Critic`."""
        own = self.optimizer.locals()
        model = self.optimizer.named
        for name, tensor in policy:
            if name in own and name != self.head:
                own[name].copy_(tensor[own_rows(model[name])])

    def tensors(self) -> Named:
        """See `Critic`. Gathers tensors one at a time."""
        shards = self.optimizer.locals()
        for name, parameter in sorted(self.optimizer.named.items()):
            with lost_group(self._world):
                tensor = whole(parameter, shards[name])
            yield name, tensor

    def parts(self, kind: str) -> Iterator[TensorPart[torch.Tensor]]:
        """See `Critic`."""
        return self.optimizer.parts(self.optimizer.locals() if kind == "weights" else self.optimizer.moments[kind])

    def rectangles(self, kind: str) -> Iterator[tuple[str, Box]]:
        """See `Critic`."""
        return self.optimizer.rectangles()

    @property
    def steps(self) -> int:
        """See `Critic`."""
        return self.optimizer.steps

    def load(self, folder: Path, steps: int) -> None:
        """See `Critic`."""
        weights = open_tensors(folder, CRITIC)
        shapes = {name: parameter.shape for name, parameter in self.optimizer.named.items()}
        require_same(folder, weights.shapes, shapes)
        self.optimizer.load(weights, self.optimizer.locals())
        self.optimizer.load_moments(folder, CRITIC_OPTIMIZER, steps)

    def memory(self) -> HeldMemory:
        """See `Critic`."""
        return together(HeldMemory(tuple(sharded_memory(self._model))), self.optimizer.memory())
