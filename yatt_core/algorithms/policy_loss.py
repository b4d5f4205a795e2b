"""The clipped policy objective per token, and the weight that corrects for numerical differences from the sampler."""

from __future__ import annotations

import torch


def clipped_policy_loss(
    ratio: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A).

    This is PPO's loss (arXiv 1707.06347) with two bounds (arXiv 2503.14476). Returns the loss per token, and a
    mask of the tokens at which the clipped term was the smaller one (the gradient is zero there).

    ratio: exp(new - old), same shape as `advantages`.
    """
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return -torch.minimum(plain, clipped), clipped < plain


def importance_weight(log_probs_old: torch.Tensor, log_probs_sampler: torch.Tensor, cap: float) -> torch.Tensor:
    """Computes min(exp(old - sampler), cap), without gradient.

    This is truncated importance sampling (IMPALA, arXiv 1802.01561). It corrects for tokens drawn by an engine whose
    log-probabilities differ slightly from the trainer's.
    """
    return (log_probs_old - log_probs_sampler).detach().exp().clamp(max=cap)
