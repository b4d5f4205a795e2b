"""AdamW over the rows that a rank holds of each parameter, with gradient clipping by the global norm.

Consumes a sharded model; each rank updates its own rows with torch's fused kernel. Weights and moments are
float32, regardless of the model's compute dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from yatt_core.checkpoints.contents import open_tensors
from yatt_core.engines.adapters import BASE, OWN, is_adapter
from yatt_core.engines.offload import HeldMemory
from yatt_core.engines.train.fsdp2.sharding import sharded_parameters
from yatt_core.engines.train.model.optimizer import CLIP_EPSILON, MOMENTS, is_step
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.sharded_rows import own_rows
from yatt_core.spec.sections.trainer import AdamWSpec
from yatt_core.wire.part_files import PartFiles
from yatt_core.wire.parts import Box, TensorPart

Shards = dict[str, torch.Tensor]
OptimizerState = tuple[Shards, dict[str, Shards], int]
"""Weights, moments and number of steps."""


class ShardedAdamW:
    """AdamW (arXiv 1711.05101). Implements `PolicyOptimizer`; the passes have summed the gradients over the ranks."""

    def __init__(self, model: nn.Module, spec: AdamWSpec, world: Collective) -> None:
        self.model: Mapping[str, DTensor] = sharded_parameters(model)
        self._named = {name: parameter for name, parameter in self.model.items() if parameter.requires_grad}
        self._spec = spec
        self._world = world
        self.reset()

    @property
    def parameters(self) -> int:
        """Number of the whole model's weights."""
        return sum(parameter.numel() for parameter in self.model.values())

    @property
    def named(self) -> Mapping[str, DTensor]:
        """The model's trained parameters."""
        return self._named

    def reset(self) -> None:
        """Resets the optimizer: no moments, no steps. The weights stay unchanged."""
        self.steps = 0
        self.moments: dict[str, Shards] = {}

    def zero(self) -> None:
        """Clears the gradients."""
        for parameter in self._named.values():
            parameter.grad = None

    def reduce(self, collective: Collective) -> None:
        """Does nothing: the passes have summed the gradients."""

    def scale(self, factor: float) -> None:
        """Multiplies the gradients."""
        torch._foreach_mul_(self._gradients(), factor)

    def apply(self, learning_rate: float, loss: float) -> float:
        """Clips the gradients and takes one step. Behaves and raises as `PolicyOptimizer.apply` does."""
        gradients = self._gradients()
        norms = torch.stack([torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients])
        norm = math.sqrt(float(self._world.sum(norms.square().sum().cpu())))
        if is_step(loss, norm):
            torch._foreach_mul_(gradients, min(1.0, self._spec.max_grad_norm / (norm + CLIP_EPSILON)))
            self._step(gradients, learning_rate)
        self.zero()
        return norm

    @torch.no_grad()
    def _step(self, gradients: Sequence[torch.Tensor], learning_rate: float) -> None:
        if not self.moments:
            self.moments = {kind: {n: torch.zeros_like(s) for n, s in self.locals().items()} for kind in MOMENTS}
        own = self.locals()
        steps = [torch.tensor(float(self.steps), device=shard.device) for shard in own.values()]
        first, second = (list(self.moments[kind].values()) for kind in MOMENTS)
        beta1, beta2 = self._spec.betas
        adamw(
            list(own.values()),
            list(gradients),
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=learning_rate,
            weight_decay=self._spec.weight_decay,
            eps=self._spec.epsilon,
            maximize=False,
        )
        self.steps += 1

    def memory(self) -> HeldMemory:
        """Returns the moments as memory that this rank holds; clears the gradients."""
        self.zero()
        return HeldMemory(tuple(shard for kind in self.moments.values() for shard in kind.values()))

    def locals(self) -> Shards:
        """Returns this rank's rows of each trained parameter; torch may move them when the model first computes."""
        with torch.no_grad():
            return {name: parameter.to_local() for name, parameter in self._named.items()}

    def everything(self) -> Shards:
        """Returns this rank's rows of all parameters, trained or not."""
        with torch.no_grad():
            return {name: parameter.to_local() for name, parameter in self.model.items()}

    def parts(self, shards: Mapping[str, torch.Tensor]) -> Iterator[TensorPart[torch.Tensor]]:
        """Yields tensors that are sharded like the parameters of the same names; not those of which it has no rows."""
        for name, shard in shards.items():
            if shard.numel():
                parameter = self.model[name]
                start = (own_rows(parameter).start, *(0 for _ in parameter.shape[1:]))
                yield TensorPart(
                    name=name,
                    shape=tuple(parameter.shape),
                    offsets=start,
                    values=shard.detach(),
                    holders=(self._world.rank,),
                )

    def plain_shapes(self) -> dict[str, torch.Size]:
        """Returns the shapes of the weights under Hugging Face names, without adapters."""
        shapes = ((name.replace(BASE, OWN), parameter.shape) for name, parameter in self.model.items())
        return {name: shape for name, shape in shapes if not is_adapter(name)}

    def copy(self) -> Shards:
        """Copies this rank's rows."""
        return {name: shard.clone() for name, shard in self.locals().items()}

    @contextmanager
    def exchanged(self, other: Shards) -> Iterator[None]:
        """Replaces the model's weights temporarily, then restores them."""
        own = self.copy()
        self.put(other)
        try:
            yield
        finally:
            self.put(own)

    def put(self, shards: Mapping[str, torch.Tensor]) -> None:
        """Overwrites this rank's rows."""
        for name, own in self.locals().items():
            own.copy_(shards[name])

    def held(self) -> OptimizerState:
        """Copies what this rank holds."""
        return self.copy(), self.moments, self.steps

    def hold(self, held: OptimizerState) -> None:
        """Restores what `held` returned."""
        shards, self.moments, self.steps = held
        self.put(shards)

    def load(self, files: PartFiles, shards: Mapping[str, torch.Tensor], prefix: str = "") -> None:
        """Reads this rank's rows of tensors that are sharded like the parameters of the same names.

        prefix: what precedes the parameters' names in the files.
        """
        for name, shard in shards.items():
            shard.copy_(torch.from_numpy(files.read(f"{prefix}{name}", self._box(name, shard))))

    def rectangles(self) -> Iterator[tuple[str, Box]]:
        """Yields this rank's rows of each trained parameter."""
        for name, shard in self.locals().items():
            yield name, self._box(name, shard)

    def _box(self, name: str, shard: torch.Tensor) -> Box:
        parameter = self.model[name]
        return Box((own_rows(parameter).start, *(0 for _ in parameter.shape[1:])), tuple(shard.shape))

    def loaded(self, files: PartFiles, prefix: str = "") -> Shards:
        """Reads this rank's rows of each trained parameter into new tensors."""
        found = {name: torch.empty_like(shard) for name, shard in self.locals().items()}
        self.load(files, found, prefix)
        return found

    def load_moments(self, checkpoint: Path, subfolder: str, steps: int) -> None:
        """Loads the moments after `steps` steps; after 0 steps there are none."""
        self.reset()
        if steps:
            files = open_tensors(checkpoint, subfolder)
            self.moments = {kind: self.loaded(files, f"{kind}.") for kind in MOMENTS}
            self.steps = steps

    def _gradients(self) -> list[torch.Tensor]:
        found = []
        for parameter in self._named.values():
            gradient = parameter.grad
            assert isinstance(gradient, DTensor), "a pass goes through every parameter"
            found.append(gradient.to_local())
        return found
