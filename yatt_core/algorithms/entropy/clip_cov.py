"""No gradient for a few of the tokens that take most of the entropy away."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PositiveFloat, model_validator

from yatt_core.algorithms.entropy.base import EntropyMethod

if TYPE_CHECKING:
    import torch


class CovarianceClip(EntropyMethod):
    """Clip-Cov (arXiv 2505.22617).

    The covariance of a token is (log p - mean(log p)) (A - mean(A)), with means over the step's tokens. Of the tokens whose
    covariance is between low and high, a random choice of fraction x all tokens, at least one, gets no gradient. log p is that
    before the first step, so that the choice depends on neither ranks nor micro-batches.
    """

    kind: Literal["clip_cov"] = "clip_cov"
    fraction: PositiveFloat = Field(default=2e-4, le=1.0)
    """Maximum fraction of the step's tokens without a gradient."""
    low: PositiveFloat = 1.0
    """Smallest covariance of a token without a gradient."""
    high: PositiveFloat = 5.0
    """Largest covariance of a token without a gradient."""

    in_loss: ClassVar[bool] = False
    freezes: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_bounds(self) -> CovarianceClip:
        if self.high < self.low:
            raise ValueError(f"high: {self.high} is less than low {self.low}")
        return self

    def frozen(self, log_probs: torch.Tensor, advantages: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """See `EntropyMethod`."""
        covariances = (log_probs - log_probs.mean()) * (advantages - advantages.mean())
        eligible = (covariances >= self.low) & (covariances <= self.high)
        chosen = order[eligible[order]][: max(int(self.fraction * len(order)), 1)]
        return eligible.new_zeros(len(order)).index_fill(0, chosen, True)
