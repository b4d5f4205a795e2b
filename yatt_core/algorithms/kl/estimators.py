"""Estimators of KL(policy || reference) from the log-probabilities of sampled tokens.

See Schulman, "Approximating KL divergence" (2020), for the names k1, k2 and k3; GRPO (arXiv 2402.03300) uses k3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Estimator = Literal["k1", "k2", "k3"]
LOG_RATIO_BOUND = 20.0
"""Log-ratios of probabilities are clamped to +-20 before they are exponentiated: above 88, exp() is infinite in float32
and its gradient NaN even where the ratio is clipped."""


def bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    """Returns a log-ratio clamped to the bound, beyond which it has no gradient. Same shape as the input."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def is_bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    """Returns a mask of the log-ratios that `bounded` changes."""
    return log_ratio.detach().abs() > LOG_RATIO_BOUND


def k1(log_probs: torch.Tensor, log_probs_ref: torch.Tensor) -> torch.Tensor:
    """Returns log p - log q per token: unbiased, of either sign. Same shape as the inputs."""
    return log_probs - log_probs_ref


def k3(log_probs: torch.Tensor, log_probs_ref: torch.Tensor) -> torch.Tensor:
    """Returns q/p - log(q/p) - 1 per token: unbiased while log(q/p) is within the bound, never negative.

    Same shape as the inputs.
    """
    log_ratio = bounded(log_probs_ref - log_probs)
    return log_ratio.expm1() - log_ratio


def k2(log_probs: torch.Tensor, log_probs_ref: torch.Tensor) -> torch.Tensor:
    """Returns (log p - log q)^2 / 2 per token: biased, never negative; its gradient is that of KL(p || q) on p's samples.

    Same shape as the inputs.
    """
    return (log_probs - log_probs_ref).square() / 2


def divergence(estimator: Estimator, log_probs: torch.Tensor, log_probs_ref: torch.Tensor) -> torch.Tensor:
    """Returns an estimator's value per token. Same shape as the inputs."""
    return {"k1": k1, "k2": k2, "k3": k3}[estimator](log_probs, log_probs_ref)
