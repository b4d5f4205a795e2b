"""PPO's clipped objective."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from yatt_core.algorithms.losses.base import PolicyLoss, clipped_loss
from yatt_core.algorithms.tokens import PolicyTokens, TokenLosses


class ClipLoss(PolicyLoss):
    """PPO (arXiv 1707.06347), with a bound on either side (DAPO, arXiv 2503.14476).

    -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), where r is the ratio of new to old probability of a token.
    """

    kind: Literal["clip"] = "clip"
    clip_low: PositiveFloat = Field(default=0.2, lt=1.0)
    """The ratio of new to old probability is clipped below at 1 - `clip_low`."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped above at 1 + `clip_high`; a value greater than `clip_low` is DAPO's clip-higher."""

    def token_losses(self, tokens: PolicyTokens) -> TokenLosses:
        """See `PolicyLoss`."""
        return clipped_loss(tokens.ratio, tokens.advantages, self.clip_low, self.clip_high)
