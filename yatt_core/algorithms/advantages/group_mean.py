"""Dr. GRPO's advantage."""

from __future__ import annotations

from typing import Literal

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch, centred


class GroupMeanAdvantage(Advantage):
    """Dr. GRPO (arXiv 2503.20783): r - mean(group)."""

    kind: Literal["group_mean"] = "group_mean"

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        return centred(batch.rewards, batch.sizes)
