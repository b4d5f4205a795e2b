"""Entropy of the next-token distribution."""

from __future__ import annotations

import torch


def token_entropy(log_distribution: torch.Tensor) -> torch.Tensor:
    """Computes -sum_v p_v log p_v in nats. log_distribution: [..., V], normalised. Returns [...]."""
    return -(log_distribution.exp() * log_distribution).sum(-1)
