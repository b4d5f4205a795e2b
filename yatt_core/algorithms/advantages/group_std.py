"""GRPO's advantage."""

from __future__ import annotations

from typing import Literal

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch, group_normalised


class GroupStdAdvantage(Advantage):
    """GRPO (arXiv 2402.03300): (r - mean(group)) / (std(group) + epsilon), std over n - 1."""

    kind: Literal["group_std"] = "group_std"

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        return group_normalised(batch.rewards, batch.sizes, batch.epsilon)
