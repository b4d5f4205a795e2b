"""On-policy distillation: what a teacher's opinion of the policy's own tokens adds to their advantages."""

from __future__ import annotations

import torch


def taught_advantages(advantages: torch.Tensor, divergence: torch.Tensor, coefficient: float) -> torch.Tensor:
    """A - coefficient (log p_old - log q) per token, with p the policy and q the teacher; same shape as the inputs.

    divergence: log p_old - log q of the sampled token, without gradient. At a context of the policy the gradient of
    KL(p || q) is E_p[(log p - log q) grad log p]: that of a policy whose tokens have the advantage log q - log p, each by
    itself (the reverse KL on the student's samples of arXiv 2306.13649; the single-step part of arXiv 2306.08543).
    """
    return advantages - coefficient * divergence
