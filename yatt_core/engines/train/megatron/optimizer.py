"""Megatron-Core's optimizer over this rank's part: AdamW on float32 master weights, optionally sharded over the copies.

Consumes a part in its gradient buffers; each step clips by the norm over all ranks. State is read and written
one parameter at a time, as whole tensor-parallel shards, which avoids the bugs of Megatron-Core's own
checkpoints of this optimizer (tests/engines/train/test_megatron_bugs.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from yatt_core.engines.train.megatron.cpu import on_this_device
from yatt_core.engines.train.megatron.model import Grid, ModelPart
from yatt_core.engines.train.model.optimizer import is_step
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import lost_group
from yatt_core.spec.sections.trainer import AdamWSpec

Held = tuple[list[tuple[torch.Tensor, torch.Tensor | None, dict[str, torch.Tensor]]], int]


@dataclass(frozen=True, slots=True)
class Master:
    """The float32 weights of a parameter that this rank updates.

    start, stop: range of these weights in the flattened parameter.
    """

    weights: torch.Tensor
    start: int
    stop: int


class MegatronAdamW:
    """Implements `PolicyOptimizer`; the schedule has summed the gradients over the copies."""

    def __init__(self, part: ModelPart, grid: Grid, spec: AdamWSpec, distributed: bool, world: Collective) -> None:
        self._part = part
        self._grid = grid
        self._spec = spec
        self._distributed = distributed
        self._world = world
        own = sum(parameter.numel() for _, parameter, place in part.places() if not part.repeats(place))
        first_copy = torch.tensor(own if grid.copy == 0 else 0, dtype=torch.int64)
        self._parameters = int(world.sum(first_copy))
        self._make()

    @property
    def parameters(self) -> int:
        """Number of the whole model's weights; each tensor-parallel rank has the norms, so they count once per rank."""
        return self._parameters

    def reset(self) -> None:
        """Resets the optimizer: no moments, no steps. The weights stay unchanged."""
        for state in self._inner().state.values():
            state.clear()
        self._inner().state.clear()
        self.steps = 0

    def zero(self) -> None:
        """Clears the gradients."""
        with on_this_device():
            self._part.wrapped.zero_grad_buffer()
            self._optimizer.zero_grad()

    def reduce(self, collective: Collective) -> None:
        """Does nothing: the schedule has summed the gradients."""

    def scale(self, factor: float) -> None:
        """Multiplies the gradients."""
        for gradients in self._part.gradients():
            gradients.mul_(factor)

    @torch.no_grad()
    def apply(self, learning_rate: float, loss: float) -> float:
        """Clips the gradients and takes one step. Behaves and raises as `PolicyOptimizer.apply` does."""
        from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

        with on_this_device(), lost_group(self._world):
            self._optimizer.prepare_grads()
            norm = float(self._optimizer.get_grad_norm())
            if not is_step(loss, norm):
                return norm
            clip_grad_by_total_norm_fp32(self._optimizer.get_parameters(), self._spec.max_grad_norm, norm)
            for group in self._inner().param_groups:
                group["lr"] = learning_rate
            self._optimizer.step_with_ready_grads()
        self.steps += 1
        return norm

    def lasting(self) -> Iterator[torch.Tensor]:
        """Yields the weights and moments that this rank updates."""
        inner = self._inner()
        for group in inner.param_groups:
            yield from group["params"]
        for state in inner.state.values():
            yield from (value for value in state.values() if torch.is_tensor(value))

    def copy(self) -> list[torch.Tensor]:
        """Copies the model's own weights, in their precision."""
        return [parameter.detach().clone() for parameter in self._part.module.parameters()]

    @contextmanager
    def exchanged(self, other: list[torch.Tensor]) -> Iterator[None]:
        """Replaces the model's weights temporarily, then restores them; the master weights stay unchanged."""
        own = self.copy()
        self._put(other)
        try:
            yield
        finally:
            self._put(own)

    def master(self, parameter: nn.Parameter) -> Master | None:
        """Returns the part of a parameter that this rank updates; None if another copy updates all of it."""
        optimizer = self._optimizer
        if not self._distributed:
            weights = getattr(parameter, "main_param", parameter)
            return Master(weights, 0, parameter.numel())
        if parameter not in optimizer.model_param_group_index_map:
            return None
        group, number = optimizer.model_param_group_index_map[parameter]
        own = optimizer._get_model_param_range_map(parameter)["param"]
        return Master(self._inner().param_groups[group]["params"][number], own.start, own.end)

    @property
    def divided(self) -> bool:
        """Whether each copy updates a part of its own."""
        return self._distributed and self._grid.copies > 1

    @torch.no_grad()
    def held_numbers(self, parameter: nn.Parameter, kind: str) -> Master | None:
        """Returns the master weights or moments that this rank updates, flattened; None if it updates none.

        kind: `weights` or a moment's name.
        """
        if (master := self.master(parameter)) is None:
            return None
        numbers = master.weights if kind == "weights" else self._inner().state[master.weights][kind]
        return Master(numbers.detach().flatten(), master.start, master.stop)

    @torch.no_grad()
    def whole(self, parameter: nn.Parameter) -> torch.Tensor:
        """Returns a parameter's whole master weights in its shape, float32. All copies must call it."""
        master = self.master(parameter)
        values = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        if master is not None:
            values[master.start : master.stop] = master.weights.detach().float().flatten()
        if self._distributed and self._grid.copies > 1:
            # Each number is on one copy; the others contribute zeros.
            torch.distributed.all_reduce(values, group=self._grid.copy_group)
        return values.view(parameter.shape)

    @torch.no_grad()
    def take(self, parameter: nn.Parameter, values: torch.Tensor) -> None:
        """Loads a parameter's weights.

        values: in the parameter's shape, float32.
        """
        parameter.copy_(values)
        if (master := self.master(parameter)) is not None:
            own = values.flatten()[master.start : master.stop].to(master.weights.device)
            master.weights.copy_(own.view(master.weights.shape))

    @torch.no_grad()
    def take_moment(self, parameter: nn.Parameter, kind: str, numbers: torch.Tensor) -> None:
        """Loads a moment of the weights that this rank updates.

        numbers: flattened, float32.
        """
        if (master := self.master(parameter)) is not None:
            state = self._inner().state[master.weights]
            state[kind] = numbers.to(master.weights.device).view(master.weights.shape)
            # One tensor per parameter: torch's AdamW increments it in place.
            state["step"] = torch.tensor(float(self.steps))

    def held(self) -> Held:
        """Copies what this rank holds: each parameter's weights, and the master weights and moments that it updates."""
        rows = []
        for parameter in self._part.module.parameters():
            master = self.master(parameter)
            state = {} if master is None else self._inner().state.get(master.weights, {})
            own = None if master is None else master.weights.detach().clone()
            rows.append((parameter.detach().clone(), own, {name: value.clone() for name, value in state.items()}))
        return rows, self.steps

    @torch.no_grad()
    def hold(self, held: Held) -> None:
        """Restores what `held` returned, in a new group of the same layout."""
        rows, self.steps = held
        for parameter, (weights, own, state) in zip(self._part.module.parameters(), rows, strict=True):
            parameter.copy_(weights)
            master = self.master(parameter)
            if master is not None and own is not None:
                master.weights.copy_(own)
                if state:
                    self._inner().state[master.weights] = state

    def _make(self) -> None:
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        settings = self._part.settings
        spec = self._spec
        config = OptimizerConfig(
            optimizer="adam",
            lr=spec.learning_rate,
            weight_decay=spec.weight_decay,
            adam_beta1=spec.betas[0],
            adam_beta2=spec.betas[1],
            adam_eps=spec.epsilon,
            clip_grad=spec.max_grad_norm,
            use_distributed_optimizer=self._distributed,
            bf16=settings.bf16,
            params_dtype=settings.params_dtype,
        )
        # Empty overrides: by default, biases and norms would be exempt from weight decay.
        (self._optimizer,) = get_megatron_optimizer(config, [self._part.wrapped], {}).chained_optimizers
        self.steps = 0

    def _inner(self) -> Any:
        """Returns the underlying torch optimizer."""
        return self._optimizer.optimizer

    @torch.no_grad()
    def _put(self, weights: list[torch.Tensor]) -> None:
        for parameter, values in zip(self._part.module.parameters(), weights, strict=True):
            parameter.copy_(values)
