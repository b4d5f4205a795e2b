"""REINFORCE++'s advantage: no group, one normalisation over the tokens of the batch."""

from __future__ import annotations

from typing import Literal

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch, centred
from yatt_core.algorithms.advantages.estimation import rewards_to_go, whitened


class ReinforcePlusPlusAdvantage(Advantage):
    """REINFORCE++ (arXiv 2501.03262): A_t = r minus the penalties of token t and the later ones, whitened over all tokens.

    Whitened: (A - mean(batch)) / (std(batch) + epsilon) over the tokens, std over n - 1.
    """

    kind: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    baseline: bool = False
    """The paper's baseline variant: the group's mean is subtracted from r first."""

    @property
    def by_token(self) -> bool:
        """See `Advantage`."""
        return True

    @property
    def by_group(self) -> bool:
        """See `Advantage`."""
        return False

    @property
    def compares(self) -> bool:
        """True with the group's mean as the baseline; else the batch's mean is the baseline."""
        return self.baseline

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        rewards = centred(batch.rewards, batch.sizes) if self.baseline else batch.rewards
        return whitened(rewards_to_go(rewards, batch.penalties, batch.lengths), batch.epsilon)
