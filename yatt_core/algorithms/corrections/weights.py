"""Importance weights of the trainer over the sampler, and what every importance correction implements."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

from yatt_core.algorithms.tokens import PolicyTokens
from yatt_core.section import SpecModel

if TYPE_CHECKING:
    import torch

LOG_WEIGHT_BOUND = 20.0
"""Logarithms of weights are clamped to +-20, so that the product of a long response's ratios stays finite."""


class ImportanceCorrection(SpecModel):
    """A correction with its settings; `kind` names it."""

    kind: str
    by: Literal["token", "sequence", "sequence_mean"] = "token"
    """`token`: old / sampler of the token. `sequence`: the product over the response's tokens. `sequence_mean`: their
    geometric mean."""

    @property
    def whole_responses(self) -> bool:
        """Whether a token's weight depends on the other tokens of its response."""
        return self.by != "token"

    @property
    def ceiling(self) -> float:
        """The greatest weight, to which greater ones are capped; infinite if none are."""
        return math.inf

    @abstractmethod
    def weights(self, tokens: PolicyTokens) -> torch.Tensor:
        """Returns the factor of each token's loss, [T], without gradients; 0 for a token that is masked."""

    def raw_weights(self, tokens: PolicyTokens) -> torch.Tensor:
        """Returns exp(old - sampler) of each token, its response, or the mean of its response, [T]."""
        difference = (tokens.old - tokens.sampler).detach()
        if self.by == "sequence":
            difference = tokens.whole.total(difference)
        elif self.by == "sequence_mean":
            difference = tokens.whole.mean(difference)
        if self.by != "token":
            difference = difference.clamp(-LOG_WEIGHT_BOUND, LOG_WEIGHT_BOUND)
        return difference.exp()
