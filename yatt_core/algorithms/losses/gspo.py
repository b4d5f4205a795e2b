"""The clipped objective with one ratio for a whole response."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from yatt_core.algorithms.losses.base import PolicyLoss, clipped_loss
from yatt_core.algorithms.tokens import PolicyTokens, TokenLosses


class GspoLoss(PolicyLoss):
    """GSPO, group sequence policy optimisation (arXiv 2507.18071).

    -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), with s = exp(mean over the response of log(new / old)), for each
    token of the response. The paper aggregates by `sequence_mean`.
    """

    kind: Literal["gspo"] = "gspo"
    clip_low: PositiveFloat = Field(default=3e-4, lt=1.0)
    """The response's ratio is clipped below at 1 - `clip_low`."""
    clip_high: PositiveFloat = 4e-4
    """The response's ratio is clipped above at 1 + `clip_high`."""

    @property
    def whole_responses(self) -> bool:
        """See `PolicyLoss`."""
        return True

    def token_losses(self, tokens: PolicyTokens) -> TokenLosses:
        """See `PolicyLoss`."""
        ratio = tokens.whole.mean(tokens.log_ratio).exp()
        return clipped_loss(ratio, tokens.advantages, self.clip_low, self.clip_high)
