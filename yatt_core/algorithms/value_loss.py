"""The critic's loss per token."""

from __future__ import annotations

import torch


def clipped_value_loss(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2 (arXiv 2005.12729, 2006.05990).

    Without a clip c, the loss is (V - R)^2 / 2. All tensors have the same shape. Returns the loss per token, and
    a mask of the tokens at which the clipped term was the larger one (the gradient is zero there).
    """
    plain = (values - returns).square()
    if clip is None:
        return plain / 2, torch.zeros_like(plain, dtype=torch.bool)
    bounded = (old + (values - old).clamp(-clip, clip) - returns).square()
    return torch.maximum(plain, bounded) / 2, bounded > plain
