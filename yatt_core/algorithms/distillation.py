"""On-policy distillation: mixes teachers, and adds their log-probabilities of the policy's own tokens to advantages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

Float32 = npt.NDArray[np.float32]


def mixed_log_probs(log_probs: Sequence[Float32], weights: Sequence[float]) -> Float32:
    """Returns log sum_m w_m q_m of each token, where w are the weights divided by their sum.

    log_probs: [T] of each teacher m.
    """
    shares = np.log(np.array(weights) / sum(weights))
    parts = np.stack([found.astype(np.float64) for found in log_probs]) + shares[:, None]
    mixed: Float32 = np.logaddexp.reduce(parts, axis=0).astype(np.float32)
    return mixed


def taught_advantages(advantages: torch.Tensor, divergence: torch.Tensor, coefficient: float) -> torch.Tensor:
    """Returns A - coefficient (log p_old - log q) per token, where p is the policy and q the teacher.

    divergence: log p_old - log q of the sampled token, without gradient; all inputs and the result have the same
        shape.

    In a given context, the gradient of KL(p || q) is E_p[(log p - log q) grad log p]: the policy gradient in
    which each token has the advantage log q - log p (the reverse KL on the student's samples of arXiv 2306.13649;
    the single-step part of arXiv 2306.08543).
    """
    return advantages - coefficient * divergence
