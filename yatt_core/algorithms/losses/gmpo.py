"""The geometric mean of a response's clipped ratios."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from yatt_core.algorithms.losses.base import PolicyLoss
from yatt_core.algorithms.tokens import PolicyTokens, TokenLosses


class GmpoLoss(PolicyLoss):
    """GMPO, geometric-mean policy optimisation (arXiv 2507.20673).

    -A exp(mean over the response of c), with c = min(l, clip(l)) for A > 0 and max(l, clip(l)) otherwise, l = log(new / old),
    and clip to [-clip_low, clip_high], for each token of the response. The paper aggregates by `sequence_mean`.
    """

    kind: Literal["gmpo"] = "gmpo"
    clip_low: PositiveFloat = 0.4
    """Log-ratios are clipped below at -`clip_low`."""
    clip_high: PositiveFloat = 0.4
    """Log-ratios are clipped above at `clip_high`."""

    @property
    def whole_responses(self) -> bool:
        """See `PolicyLoss`."""
        return True

    def token_losses(self, tokens: PolicyTokens) -> TokenLosses:
        """See `PolicyLoss`."""
        free = tokens.log_ratio
        rises = tokens.advantages > 0
        bounded = free.clamp(-self.clip_low, self.clip_high)
        limited = free.minimum(bounded).where(rises, free.maximum(bounded))
        ratio = tokens.whole.mean(limited).exp()
        return TokenLosses(-ratio * tokens.advantages, limited != free)
