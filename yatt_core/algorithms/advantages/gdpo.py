"""GDPO's advantage: several rewards, each normalised apart."""

from __future__ import annotations

from typing import Literal

import numpy as np

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch, group_normalised
from yatt_core.algorithms.advantages.estimation import whitened


class GdpoAdvantage(Advantage):
    """Group reward-decoupled normalisation (GDPO, arXiv 2601.05242).

    Each reward part is normalised in its group, (r_k - mean(group)) / (std(group) + epsilon). Their sum, by the parts'
    weights, is normalised over the batch: (A - mean(batch)) / (std(batch) + epsilon).
    """

    kind: Literal["gdpo"] = "gdpo"

    @property
    def by_group(self) -> bool:
        """See `Advantage`."""
        return False

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        total = np.zeros(len(batch.rewards))
        for weight, rewards in batch.parts.values():
            total += weight * group_normalised(rewards, batch.sizes, batch.epsilon)
        return whitened(total, batch.epsilon)
