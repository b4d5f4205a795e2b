"""Moments of rewards, merged from one partial per group in prompt order, wherever the groups were computed.

Consumes rewards ordered by group, float64. Produces partials, the moments they merge to, and the reward scale
that follows from all of the run's rewards so far. Results are bit-identical, no matter which process computed
which group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from yatt_core.round_off import ROUND_OFF

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Scaling = Literal["none", "running"]


@dataclass(frozen=True, slots=True)
class GroupMoments:
    """Partials of G groups, each [G]: size, mean, and sum of squared deviations from that mean."""

    sizes: Int64
    means: Float64
    squares: Float64


@dataclass(frozen=True, slots=True)
class RewardMoments:
    """Moments of all rewards up to some point, in prompt order: count, mean, sum of squared deviations from the mean."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation over n - 1; 0 for fewer than two rewards."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def scale(self, epsilon: float) -> float:
        """Returns the factor for rewards: 1 / (deviation + epsilon), or 1 if the spread is within round-off.

        Dividing by the deviation of earlier rewards, without a shift, preserves a reward's sign (arXiv
        2005.12729, 2307.04964).
        """
        return 1.0 / (self.deviation + epsilon) if self.deviation > ROUND_OFF * abs(self.mean) else 1.0


def group_moments(rewards: Float64, sizes: Int64) -> GroupMoments:
    """Returns the partials of each group, computed from its own rewards alone.

    rewards: [sum(sizes)].
    sizes: [G], all positive.
    """
    groups = np.split(rewards, np.cumsum(sizes)[:-1])
    means = np.array([group.mean() for group in groups], dtype=np.float64)
    squares = np.array(
        [((group - mean) ** 2).sum() for group, mean in zip(groups, means, strict=True)], dtype=np.float64
    )
    return GroupMoments(sizes, means, squares)


def merged(before: RewardMoments, groups: GroupMoments) -> RewardMoments:
    """Returns the moments after merging in more groups, one by one, in prompt order.

    The merge is Chan's: M2 = M2a + M2b + d^2 na nb / (na + nb), with d the difference of the means.
    """
    count = before.count
    mean = before.mean
    squares = before.squares
    for size, group_mean, group_squares in zip(
        groups.sizes.tolist(), groups.means.tolist(), groups.squares.tolist(), strict=True
    ):
        distance = group_mean - mean
        total = count + size
        squares += group_squares + distance * distance * count * size / total
        mean += distance * size / total
        count = total
    return RewardMoments(count, mean, squares)


def scaled(
    rewards: Float64, before: RewardMoments, scaling: Scaling, epsilon: float
) -> tuple[Float64, dict[str, float]]:
    """Scales rewards as `AlgorithmSpec.reward_scaling` specifies, and returns them with the corresponding metrics.

    before: moments of all earlier iterations.
    """
    if scaling == "none":
        return rewards, {}
    scale = before.scale(epsilon)
    return rewards * scale, {"reward_scale": scale}
