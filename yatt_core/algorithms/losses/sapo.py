"""A smooth gate in place of the clip."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from yatt_core.algorithms.losses.base import PolicyLoss
from yatt_core.algorithms.tokens import PolicyTokens, TokenLosses


class SapoLoss(PolicyLoss):
    """SAPO, soft adaptive policy optimisation (arXiv 2511.20347).

    -A sigmoid(tau (r - 1)) 4 / tau, with tau = tau_positive for A > 0 and tau_negative otherwise. No token is clipped.
    """

    kind: Literal["sapo"] = "sapo"
    tau_positive: PositiveFloat = 1.0
    """How fast the gate closes for tokens with a positive advantage."""
    tau_negative: PositiveFloat = 1.05
    """How fast the gate closes for the other tokens."""

    def token_losses(self, tokens: PolicyTokens) -> TokenLosses:
        """See `PolicyLoss`."""
        rises = tokens.advantages > 0
        tau = tokens.ratio.new_full(rises.shape, self.tau_positive).where(rises, self.tau_negative)
        gate = (tau * (tokens.ratio - 1.0)).sigmoid() * 4.0 / tau
        return TokenLosses(-gate * tokens.advantages, rises.new_zeros(rises.shape))
