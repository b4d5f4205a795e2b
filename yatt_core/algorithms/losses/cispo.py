"""The policy gradient with a clipped ratio as its weight: no token loses its gradient."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from yatt_core.algorithms.losses.base import PolicyLoss
from yatt_core.algorithms.tokens import PolicyTokens, TokenLosses


class CispoLoss(PolicyLoss):
    """CISPO (arXiv 2506.13585).

    -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log(new), where sg stops the gradient.
    """

    kind: Literal["cispo"] = "cispo"
    clip_low: PositiveFloat = Field(default=1.0, le=1.0)
    """The weight is clipped below at 1 - `clip_low`; 1 is no bound, as in the paper."""
    clip_high: PositiveFloat = 4.0
    """The weight is clipped above at 1 + `clip_high`."""

    def token_losses(self, tokens: PolicyTokens) -> TokenLosses:
        """See `PolicyLoss`."""
        ratio = tokens.ratio.detach()
        weight = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        return TokenLosses(-weight * tokens.advantages * tokens.log_probs, weight != ratio)
