"""What every loss of the policy implements."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from yatt_core.algorithms.tokens import PolicyTokens, TokenLosses
from yatt_core.section import SpecModel

if TYPE_CHECKING:
    import torch


class PolicyLoss(SpecModel):
    """A loss with its settings; `kind` names it."""

    kind: str

    @property
    def whole_responses(self) -> bool:
        """Whether a token's loss depends on the other tokens of its response, which are then all there."""
        return False

    @abstractmethod
    def token_losses(self, tokens: PolicyTokens) -> TokenLosses:
        """Computes the loss of each token: a pure function of the tokens and the settings."""


def clipped_loss(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> TokenLosses:
    """Computes -min(ratio A, clip(ratio, 1 - low, 1 + high) A); clipped are the tokens where the second is smaller."""
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - low, 1.0 + high) * advantages
    return TokenLosses(-plain.minimum(clipped), clipped < plain)
