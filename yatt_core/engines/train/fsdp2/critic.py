"""The critic of the FSDP2 trainer: sharded over the ranks like the policy."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from yatt_core.engines.offload import Held, together
from yatt_core.engines.train.fsdp2.forward import ShardedForward
from yatt_core.engines.train.fsdp2.loading import load_sharded
from yatt_core.engines.train.fsdp2.optimizer import ShardedAdamW, Shards
from yatt_core.engines.train.fsdp2.sharding import Sharding, own_rows, sharded_memory, whole
from yatt_core.engines.train.model.state_files import CRITIC, CRITIC_OPTIMIZER, require_same
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import lost_group
from yatt_core.engines.train.roles.critic import Critic, Named, load_critic
from yatt_core.models.tensor_files import TensorFile
from yatt_core.spec.sections.algorithm import CriticSpec


class ShardedCritic(Critic):
    """A critic; each rank holds some rows of every parameter."""

    def __init__(self, spec: CriticSpec, policy_path: str, how: Sharding, world: Collective) -> None:
        with lost_group(world):
            model, head = load_critic(spec, policy_path, partial(load_sharded, how=how))
        super().__init__(spec, head)
        self._model, self._world = model, world
        self.optimizer: ShardedAdamW = ShardedAdamW(model, spec.optimizer, world)
        self.passes = ShardedForward(model, 1.0, how.device, world, values=True)

    def take(self, policy: Named) -> None:
        """See `Critic`."""
        own, model = self.optimizer.locals(), self.optimizer.named
        for name, tensor in policy:
            if name in own and name != self.head:
                own[name].copy_(tensor[own_rows(model[name])])

    def tensors(self) -> Named:
        """See `Critic`. Gathers tensors one at a time."""
        return self._whole(self.optimizer.locals())

    def moments(self) -> tuple[Named, int]:
        """See `Critic`. Gathers tensors one at a time."""
        held = self.optimizer.moments
        named = ((f"{kind}.{name}", tensor) for kind in held for name, tensor in self._whole(held[kind]))
        return named, self.optimizer.steps

    def load(self, folder: Path, steps: int) -> None:
        """See `Critic`."""
        weights = TensorFile(folder / CRITIC)
        shapes = {name: parameter.shape for name, parameter in self.optimizer.named.items()}
        require_same(folder, weights.shapes, shapes)
        self.optimizer.put(self.optimizer.rows(weights))
        self.optimizer.load_moments(folder / CRITIC_OPTIMIZER, steps)

    def memory(self) -> Held:
        """See `Critic`."""
        return together(Held(tuple(sharded_memory(self._model))), self.optimizer.memory())

    def _whole(self, shards: Shards) -> Named:
        for name, parameter in self.optimizer.named.items():
            with lost_group(self._world):
                tensor = whole(parameter, shards[name])
            yield name, tensor
