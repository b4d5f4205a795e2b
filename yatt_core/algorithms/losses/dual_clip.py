"""PPO's clipped objective with a bound on the loss of tokens with a negative advantage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from yatt_core.algorithms.losses.base import PolicyLoss, clipped_loss
from yatt_core.algorithms.tokens import PolicyTokens, TokenLosses


class DualClipLoss(PolicyLoss):
    """Dual-clip PPO (arXiv 1912.09729).

    With A >= 0 as `clip`; with A < 0: -max(min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), ratio_max A), so that no
    token's loss exceeds ratio_max |A|.
    """

    kind: Literal["dual_clip"] = "dual_clip"
    clip_low: PositiveFloat = Field(default=0.2, lt=1.0)
    """The ratio of new to old probability is clipped below at 1 - `clip_low`."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped above at 1 + `clip_high`."""
    ratio_max: float = Field(default=3.0, gt=1.0)
    """Bound of the ratio for tokens with a negative advantage, the paper's c."""

    def token_losses(self, tokens: PolicyTokens) -> TokenLosses:
        """See `PolicyLoss`."""
        single = clipped_loss(tokens.ratio, tokens.advantages, self.clip_low, self.clip_high)
        bound = -self.ratio_max * tokens.advantages
        above = (tokens.advantages < 0) & (single.values > bound)
        return TokenLosses(bound.where(above, single.values), single.clipped | above)
