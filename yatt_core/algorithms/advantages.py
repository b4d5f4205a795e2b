"""Group-relative advantages: takes the rewards of a batch and returns one number per response.

Rewards are ordered by prompt: group g holds `sizes[g]` of them. Each group is reduced on its own; batch-wide
values are then reduced over the groups' partials in prompt order, so that the result does not depend on how
groups are spread over processes. Everything is float64.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from yatt_core.algorithms.moments import GroupMoments, RewardMoments, group_moments, merged

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Normalisation = Literal["group_std", "group_mean", "batch_std"]


def batch_deviation(moments: GroupMoments) -> float:
    """Returns the standard deviation (n - 1) of a batch, merged from its groups in prompt order; 0 for one reward."""
    return merged(RewardMoments(), moments).deviation


def group_mean(rewards: Float64, sizes: Int64) -> Float64:
    """Computes A = r - mean(group) (Dr. GRPO, arXiv 2503.20783). Returns [sum(sizes)]."""
    return _centred(rewards, group_moments(rewards, sizes))


def group_std(rewards: Float64, sizes: Int64, epsilon: float) -> Float64:
    """Computes A = (r - mean(group)) / (std(group) + epsilon), std over n - 1 (GRPO, arXiv 2402.03300).

    Returns [sum(sizes)].
    """
    moments = group_moments(rewards, sizes)
    deviations = np.sqrt(moments.squares / np.maximum(sizes - 1, 1))
    return _centred(rewards, moments) / (np.repeat(deviations, sizes) + epsilon)


def batch_std(rewards: Float64, sizes: Int64, epsilon: float) -> Float64:
    """Computes A = (r - mean(group)) / (std(batch) + epsilon), std over n - 1 (arXiv 2508.08221).

    Returns [sum(sizes)].
    """
    moments = group_moments(rewards, sizes)
    return _centred(rewards, moments) / (batch_deviation(moments) + epsilon)


def _centred(rewards: Float64, moments: GroupMoments) -> Float64:
    """Returns deviations from the group's mean; 0 for equal rewards, whose computed mean may be off by round-off."""
    begins = np.cumsum(moments.sizes) - moments.sizes
    equal = np.minimum.reduceat(rewards, begins) == np.maximum.reduceat(rewards, begins)
    return np.where(np.repeat(equal, moments.sizes), 0.0, rewards - np.repeat(moments.means, moments.sizes))


def advantages(rewards: Float64, sizes: Int64, normalise: Normalisation, epsilon: float) -> Float64:
    """Returns the advantages under one of the three normalisations of `GrpoSpec.normalise`."""
    match normalise:
        case "group_std":
            return group_std(rewards, sizes, epsilon)
        case "group_mean":
            return group_mean(rewards, sizes)
        case "batch_std":
            return batch_std(rewards, sizes, epsilon)
