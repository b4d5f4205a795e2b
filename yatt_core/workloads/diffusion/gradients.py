"""Gradients as rows of numbers, which ranks exchange and add in the order of the batches, whichever rank has computed which.

Consumes weights with gradients, and the rows of all ranks. Produces a sum whose bits do not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from yatt_core.workloads.contract import Array


def flat_gradient(weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the gradient of all weights as one row, [1, numbers]; zeros where there is none."""
    found = (torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights.values())
    return torch.cat([gradient.flatten() for gradient in found]).unsqueeze(0)


def set_gradient(weights: Mapping[str, torch.Tensor], gradient: torch.Tensor) -> None:
    """Gives weights their parts of a gradient, [numbers]."""
    sizes = [weight.numel() for weight in weights.values()]
    for weight, part in zip(weights.values(), torch.split(gradient, sizes), strict=True):
        weight.grad = part.view_as(weight).clone()


def added(parts: Sequence[Array]) -> torch.Tensor:
    """Returns the sum of the rows of all ranks, added one after another, in an order that does not depend on the ranks."""
    first, *others = np.concatenate(parts)
    total = first.copy()
    for row in others:
        total += row
    return torch.from_numpy(total)
