"""MaxRL's advantage."""

from __future__ import annotations

from typing import Literal

import numpy as np

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch, centred
from yatt_core.algorithms.moments import group_moments
from yatt_core.round_off import ROUND_OFF


class MaxRlAdvantage(Advantage):
    """Maximum likelihood RL (arXiv 2602.02710): (r - mean(group)) / mean(group); 0 unless the mean is positive by
    more than rounding.

    With rewards of 0 and 1, the mean is the group's rate of success.
    """

    kind: Literal["max_rl"] = "max_rl"

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        means = group_moments(batch.rewards, batch.sizes).means
        scales = group_moments(np.abs(batch.rewards), batch.sizes).means
        positive = np.repeat(means > ROUND_OFF * scales, batch.sizes)
        divisors = np.where(positive, np.repeat(means, batch.sizes), 1.0)
        return np.where(positive, centred(batch.rewards, batch.sizes) / divisors, 0.0)
