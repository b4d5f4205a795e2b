"""MaxRL's advantage."""

from __future__ import annotations

from typing import Literal

import numpy as np

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch, centred
from yatt_core.algorithms.moments import group_moments


class MaxRlAdvantage(Advantage):
    """Maximum likelihood RL (arXiv 2602.02710): (r - mean(group)) / mean(group); 0 if the mean is not positive.

    With rewards of 0 and 1, the mean is the group's rate of success.
    """

    kind: Literal["max_rl"] = "max_rl"

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        means = np.repeat(group_moments(batch.rewards, batch.sizes).means, batch.sizes)
        return np.where(means > 0.0, centred(batch.rewards, batch.sizes) / np.where(means > 0.0, means, 1.0), 0.0)
