"""CAPO's advantage: token rewards, normalised over the tokens of a group."""

from __future__ import annotations

from typing import Literal

import numpy as np

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch, group_normalised


class GroupTokensAdvantage(Advantage):
    """CAPO (arXiv 2508.02298): (R_t - mean) / (std + epsilon) over all tokens of all responses of the group.

    R_t is the response's reward minus the token's penalty; std over n - 1.
    """

    kind: Literal["group_tokens"] = "group_tokens"

    @property
    def by_token(self) -> bool:
        """See `Advantage`."""
        return True

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        rewards = np.repeat(batch.rewards, batch.lengths)
        if batch.penalties is not None:
            rewards = rewards - batch.penalties
        tokens = np.add.reduceat(batch.lengths, np.cumsum(batch.sizes) - batch.sizes)
        return group_normalised(rewards, tokens[tokens > 0], batch.epsilon) if len(rewards) else rewards
