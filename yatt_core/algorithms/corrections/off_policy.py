"""Masking of responses that the policy has moved away from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from yatt_core.algorithms.tokens import PolicyTokens
from yatt_core.section import SpecModel

if TYPE_CHECKING:
    import torch


class OffPolicyMask(SpecModel):
    """Off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556).

    A token is masked if its advantage is negative and the mean over its response of log(sampler / new) exceeds delta.
    """

    delta: PositiveFloat
    """Maximum mean log-ratio of a response with negative advantages."""

    def masked(self, tokens: PolicyTokens) -> torch.Tensor:
        """Returns a mask of the tokens that do not learn, [T]."""
        away = tokens.whole.mean((tokens.sampler - tokens.log_probs).detach())
        return (tokens.advantages < 0) & (away > self.delta)
