"""The policy gradient inside a trust region of the divergence of a token's probability."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from yatt_core.algorithms.losses.base import PolicyLoss
from yatt_core.algorithms.tokens import PolicyTokens, TokenLosses


class DppoLoss(PolicyLoss):
    """DPPO, divergence proximal policy optimisation, with binary divergences (arXiv 2602.04879).

    -r A, with loss 0 where the step leads out of the trust region: (A > 0 and p > q, or A < 0 and p < q) and D > delta. p
    and q are the new and the old probability of the sampled token. D is |p - q| (`tv`), or
    q log(q / p) + (1 - q) log((1 - q) / (1 - p)) (`kl`).
    """

    kind: Literal["dppo"] = "dppo"
    divergence: Literal["tv", "kl"] = "tv"
    """The divergence between the two Bernoulli distributions `this token or another`."""
    delta: PositiveFloat = 0.15
    """Size of the trust region."""

    def token_losses(self, tokens: PolicyTokens) -> TokenLosses:
        """See `PolicyLoss`."""
        new = tokens.log_probs.detach().exp()
        old = tokens.old.exp()
        if self.divergence == "tv":
            distance = (new - old).abs()
        else:
            # Rounding may leave a probability at 1, where the logarithm of the rest is infinite.
            rest_new, rest_old = ((1.0 - share).clamp(min=1e-8) for share in (new, old))
            distance = old * (tokens.old - tokens.log_probs.detach()) + rest_old * (rest_old / rest_new).log()
        outward = (tokens.advantages * (new - old)) > 0
        masked = outward & (distance > self.delta)
        return TokenLosses((-tokens.ratio * tokens.advantages).masked_fill(masked, 0.0), masked)
