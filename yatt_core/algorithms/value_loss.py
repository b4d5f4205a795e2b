"""The critic's loss, token by token."""

from __future__ import annotations

import torch


def clipped_value_loss(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2 (arXiv 2005.12729, 2006.05990); without c (V - R)^2 / 2.

    All of the same shape. Returns the loss per token, and where the clipped term was the larger one (there the gradient is
    zero).
    """
    plain = (values - returns).square()
    if clip is None:
        return plain / 2, torch.zeros_like(plain, dtype=torch.bool)
    bounded = (old + (values - old).clamp(-clip, clip) - returns).square()
    return torch.maximum(plain, bounded) / 2, bounded > plain
