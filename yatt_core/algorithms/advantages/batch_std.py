"""Deviations from the group's mean, normalised over the batch."""

from __future__ import annotations

from typing import Literal

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch, batch_deviation, centred
from yatt_core.algorithms.moments import group_moments


class BatchStdAdvantage(Advantage):
    """Group mean, batch deviation (arXiv 2508.08221): (r - mean(group)) / (std(batch) + epsilon), std over n - 1."""

    kind: Literal["batch_std"] = "batch_std"

    @property
    def by_group(self) -> bool:
        """See `Advantage`."""
        return False

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        deviation = batch_deviation(group_moments(batch.rewards, batch.sizes))
        return centred(batch.rewards, batch.sizes) / (deviation + batch.epsilon)
