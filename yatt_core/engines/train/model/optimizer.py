"""A model's parameters, gradients and AdamW moments as flat buffers, and the step that clips and applies gradients.

Consumes a model whose parameters are float32; its parameters become views of one buffer and their gradients
views of another, on the same device. With flat buffers, a step takes one all-reduce and one fused update, and
has the same bits on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.errors import ConfigurationError, NumericError
from yatt_core.spec.sections.trainer import AdamWSpec
from yatt_core.wire.parts import TensorPart

ALIGNMENT = 16
"""Parameters start at multiples of this many floats (64 bytes), as matrix kernels prefer."""
CLIP_EPSILON = 1e-6
MOMENTS = ("exp_avg", "exp_avg_sq")

Tensors = dict[str, torch.Tensor]


class FlatAdamW:
    """AdamW (arXiv 1711.05101) with gradient clipping by global norm, over one flat float32 buffer."""

    def __init__(self, model: nn.Module, spec: AdamWSpec, neighbours: Sequence[Sequence[str]] = ()) -> None:
        """Moves the model's trained parameters into flat buffers.

        neighbours: names of parameters to place next to each other without a gap, so that they can be used as
            one tensor.
        """
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        wrong = [name for name, parameter in parameters.items() if parameter.dtype != torch.float32]
        if wrong:
            raise ConfigurationError(f"parameter {wrong[0]} is {parameters[wrong[0]].dtype}; the trainer needs float32")
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        """Number of the model's weights, trained or not."""
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._offsets = {}
        end = 0
        for names in _in_order(parameters, neighbours):
            for name in names:
                self._offsets[name] = end
                end += self._shapes[name].numel()
            end = -(-end // ALIGNMENT) * ALIGNMENT
        device = next(iter(parameters.values())).device
        self.values = nn.Parameter(torch.zeros(end, device=device), requires_grad=True)
        self.gradients = torch.zeros(end, device=device)
        self._spec = spec
        gradients = self.named(self.gradients)
        with torch.no_grad():
            for name, view in self.named(self.values.detach()).items():
                view.copy_(parameters[name])
                parameters[name].data = view
                parameters[name].grad = gradients[name]
        self.values.grad = self.gradients
        self.reset()

    def reset(self) -> None:
        """Resets the optimizer: no moments, no steps. The weights stay unchanged."""
        self._adamw = torch.optim.AdamW(
            [self.values],
            lr=self._spec.learning_rate,
            betas=self._spec.betas,
            eps=self._spec.epsilon,
            weight_decay=self._spec.weight_decay,
            fused=True,
        )

    def zero(self) -> None:
        """Clears the gradients."""
        self.gradients.zero_()

    def reduce(self, collective: Collective) -> None:
        """Sums the gradients over the ranks, with the same bits on all of them."""
        collective.sum(self.gradients)

    def scale(self, factor: float) -> None:
        """Multiplies the gradients."""
        self.gradients.mul_(factor)

    def copy(self) -> torch.Tensor:
        """Returns a flat copy of the weights."""
        return self.values.detach().clone()

    def flat(self) -> list[torch.Tensor]:
        """Returns weights and moments as flat tensors."""
        state = self._adamw.state.get(self.values, {})
        return [self.values.detach(), *(state[kind] for kind in MOMENTS if kind in state)]

    def named(self, flat: torch.Tensor) -> Tensors:
        """Returns views of a flat buffer, by the names and shapes of the parameters."""
        return {
            name: flat[offset : offset + self._shapes[name].numel()].view(self._shapes[name])
            for name, offset in self._offsets.items()
        }

    def together(self, flat: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
        """Returns a view of neighbours in a flat buffer as one tensor, concatenated by rows."""
        shapes = [self._shapes[name] for name in names]
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        return flat[self._offsets[names[0]] :][: math.prod(shape)].view(shape)

    def apply(self, learning_rate: float, loss: float) -> float:
        """Clips the gradients and takes one step. Behaves and raises as `PolicyOptimizer.apply` does."""
        norm = float(torch.linalg.vector_norm(self.gradients, dtype=torch.float64))
        if not is_step(loss, norm):
            return norm
        if (share := self._spec.max_grad_norm / (norm + CLIP_EPSILON)) < 1.0:
            self.gradients.mul_(share)
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._adamw.step()
        return norm

    def moment(self, kind: str) -> Tensors:
        """Returns views of one moment, under the parameters' names."""
        return self.named(self._adamw.state[self.values][kind])

    @property
    def steps(self) -> int:
        """Number of steps taken since the last reset."""
        state = self._adamw.state.get(self.values)
        return 0 if state is None else int(state["step"])

    def load_moments(self, tensor: Callable[[str], torch.Tensor], steps: int) -> None:
        """Loads the moments after `steps` steps; after 0 steps there are none.

        tensor: returns a moment by the name that it has in checkpoints (`moments_of`).
        """
        self.reset()
        if not steps:
            return
        state = {"step": torch.tensor(float(steps), device=self.gradients.device)}
        for kind in MOMENTS:
            state[kind] = torch.zeros_like(self.gradients)
            for name, view in self.named(state[kind]).items():
                view.copy_(tensor(f"{kind}.{name}"))
        self._adamw.state[self.values] = state

    @contextmanager
    def exchanged(self, other: torch.Tensor) -> Iterator[None]:
        """Replaces the model's weights temporarily with a flat buffer, then restores them."""
        own = self.values.detach().clone()
        with torch.no_grad():
            self.values.copy_(other)
        try:
            yield
        finally:
            with torch.no_grad():
                self.values.copy_(own)


def whole_parts(tensors: Iterable[tuple[str, torch.Tensor]], ranks: int) -> Iterator[TensorPart[torch.Tensor]]:
    """Yields tensors that all of `ranks` ranks hold."""
    everyone = tuple(range(ranks))
    for name, tensor in tensors:
        yield TensorPart(
            name=name, shape=tuple(tensor.shape), offsets=(0,) * tensor.ndim, values=tensor.detach(), holders=everyone
        )


def moments_of(
    parts: Callable[[str], Iterable[TensorPart[torch.Tensor]]], steps: int
) -> Iterator[TensorPart[torch.Tensor]]:
    """Yields the parts of all moments under the names that they have in checkpoints; none before the first step.

    parts: returns the parts of one moment, under the parameters' names.
    """
    for kind in MOMENTS if steps else ():
        for part in parts(kind):
            yield replace(part, name=f"{kind}.{part.name}")


def is_step(loss: float, norm: float) -> bool:
    """Returns False if the gradient is zero, so that momentum and weight decay move no weight when nothing is learned.

    Raises `NumericError` if the loss or the gradient's norm is not finite.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise NumericError(f"loss {loss}, gradient norm {norm}: not finite; the step was not applied")
    return norm > 0.0


def state_bytes(model: nn.Module) -> int:
    """Returns the bytes that `FlatAdamW` adds to a model's weights: gradients and moments of the trained ones."""
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    return (1 + len(MOMENTS)) * trained


def _in_order(names: Iterable[str], neighbours: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Yields the names in order; neighbours are grouped at the place of their first name."""
    runs = {run[0]: run for run in neighbours}
    led = {name for run in neighbours for name in run[1:]}
    return (runs.get(name, (name,)) for name in names if name not in led)
