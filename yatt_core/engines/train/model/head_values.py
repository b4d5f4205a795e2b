"""What is read from the distributions of a chunk of tokens: log-probabilities, entropies, or anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy.typing as npt
import torch

from yatt_core.algorithms.entropy.distribution import token_entropy

Numbers = npt.NDArray[Any]
EntropyUse = Literal["none", "metric", "loss"]
"""Whether the entropies of the distributions are computed, and whether the loss depends on them."""


def joined(found: Sequence[tuple[torch.Tensor, ...]]) -> tuple[Numbers, ...]:
    """Returns what was read from successive chunks, as arrays."""
    return tuple(torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))


def values_of(
    distribution: torch.Tensor, targets: torch.Tensor, entropy: EntropyUse
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the targets' log-probabilities, and the entropies of their distributions or nothing."""
    log_probs = distribution.gather(-1, targets[:, None]).squeeze(-1)
    if entropy == "none":
        return log_probs, log_probs.new_zeros(0)
    return log_probs, token_entropy(distribution if entropy == "loss" else distribution.detach())
