"""On-policy distillation: adds a teacher's log-probabilities of the policy's own tokens to their advantages."""

from __future__ import annotations

import torch


def taught_advantages(advantages: torch.Tensor, divergence: torch.Tensor, coefficient: float) -> torch.Tensor:
    """Returns A - coefficient (log p_old - log q) per token, where p is the policy and q the teacher.

    divergence: log p_old - log q of the sampled token, without gradient; all inputs and the result have the same
        shape.

    In a given context, the gradient of KL(p || q) is E_p[(log p - log q) grad log p]: the policy gradient in
    which each token has the advantage log q - log p (the reverse KL on the student's samples of arXiv 2306.13649;
    the single-step part of arXiv 2306.08543).
    """
    return advantages - coefficient * divergence
