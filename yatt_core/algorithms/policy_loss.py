"""The clipped policy objective, token by token, and the weight that corrects for the sampler's own numbers."""

from __future__ import annotations

import torch


def clipped_policy_loss(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) (PPO, arXiv 1707.06347; two bounds: 2503.14476).

    ratio = exp(new - old), advantages: same shape. Returns the loss per token, and where the clipped term was the
    smaller one (there the gradient is zero).
    """
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return -torch.minimum(plain, clipped), clipped < plain


def importance_weight(log_probs_old: torch.Tensor, log_probs_sampler: torch.Tensor, cap: float) -> torch.Tensor:
    """min(exp(old - sampler), cap), without gradient (truncated importance sampling; IMPALA, arXiv 1802.01561).

    Corrects for tokens that were drawn by an engine whose numbers differ a little from the trainer's.
    """
    return (log_probs_old - log_probs_sampler).detach().exp().clamp(max=cap)
