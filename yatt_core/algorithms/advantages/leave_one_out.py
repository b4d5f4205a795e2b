"""RLOO's advantage."""

from __future__ import annotations

from typing import Literal

import numpy as np

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch, centred


class LeaveOneOutAdvantage(Advantage):
    """RLOO (arXiv 2402.14740): r - mean of the group's other rewards, which is n / (n - 1) (r - mean(group))."""

    kind: Literal["leave_one_out"] = "leave_one_out"

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        sizes = np.repeat(batch.sizes, batch.sizes)
        found: Float64 = centred(batch.rewards, batch.sizes) * sizes / np.maximum(sizes - 1, 1)
        return found
