"""Estimators of KL(policy || reference) from the log-probabilities of sampled tokens.

See Schulman, "Approximating KL divergence" (2020), for the names k1 and k3; GRPO (arXiv 2402.03300) uses k3.
"""

from __future__ import annotations

import torch


def k1(log_probs: torch.Tensor, log_probs_ref: torch.Tensor) -> torch.Tensor:
    """Returns log p - log q per token: unbiased, of either sign. Same shape as the inputs."""
    return log_probs - log_probs_ref


def k3(log_probs: torch.Tensor, log_probs_ref: torch.Tensor) -> torch.Tensor:
    """Returns q/p - log(q/p) - 1 per token: unbiased, never negative. Same shape as the inputs."""
    log_ratio = log_probs_ref - log_probs
    return torch.expm1(log_ratio) - log_ratio
