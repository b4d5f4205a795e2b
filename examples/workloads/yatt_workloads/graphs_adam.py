"""Adam over named tensors, whose whole state is two moments a tensor and a number of steps; and how its learning rate falls.

Consumes gradients that are already summed over the ranks; changes the tensors in place. A tensor may be some rows of a larger
one: each number is treated alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

MEAN = "mean"
SQUARE = "square"
MEAN_DECAY = 0.9
SQUARE_DECAY = 0.999
SMALLEST = 1e-8
LEAST_SHARE = 0.05
"""The share of the learning rate that is left in the end."""


def falling_share(steps: int, total: int) -> float:
    """Returns the share of the learning rate of the next step: it falls by a straight line over `total` steps."""
    return max(LEAST_SHARE, 1 - steps / total)


class Adam:
    """Implements Adam (arXiv 1412.6980) with decoupled weight decay (arXiv 1711.05101)."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], decay: float = 0.0) -> None:
        self.tensors = dict(tensors)
        self.moments = {
            f"{moment}.{name}": torch.zeros_like(tensor)
            for name, tensor in self.tensors.items()
            for moment in (MEAN, SQUARE)
        }
        self.steps = 0
        self._decay = decay

    def step(self, gradients: Mapping[str, torch.Tensor], rate: float) -> None:
        """Takes one step. gradients: one for each tensor, of its shape. rate: the learning rate of this step."""
        self.steps += 1
        mean_scale = 1 - MEAN_DECAY**self.steps
        square_scale = 1 - SQUARE_DECAY**self.steps
        with torch.no_grad():
            for name, gradient in gradients.items():
                mean = self.moments[f"{MEAN}.{name}"]
                square = self.moments[f"{SQUARE}.{name}"]
                mean.mul_(MEAN_DECAY).add_(gradient, alpha=1 - MEAN_DECAY)
                square.mul_(SQUARE_DECAY).addcmul_(gradient, gradient, value=1 - SQUARE_DECAY)
                scale = (square / square_scale).sqrt_().add_(SMALLEST)
                self.tensors[name].mul_(1 - rate * self._decay).addcdiv_(mean, scale, value=-rate / mean_scale)
