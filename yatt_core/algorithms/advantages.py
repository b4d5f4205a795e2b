"""Group-relative advantages: rewards of a batch in, one number per response out.

Rewards come prompt after prompt: group g holds `sizes[g]` of them. Each group is reduced by itself, and what the whole
batch needs is then reduced over the groups' partials in prompt order, so that a result never depends on how the groups
are spread over processes. Everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Normalisation = Literal["group_std", "group_mean", "batch_std"]


@dataclass(frozen=True, slots=True)
class GroupMoments:
    """Partials of G groups, each [G]: size, mean, and sum of the squared distances to that mean."""

    sizes: Int64
    means: Float64
    squares: Float64


def group_moments(rewards: Float64, sizes: Int64) -> GroupMoments:
    """Partials of each group from its own rewards alone. rewards: [sum(sizes)]; sizes: [G], all positive."""
    groups = np.split(rewards, np.cumsum(sizes)[:-1])
    means = np.array([group.mean() for group in groups], dtype=np.float64)
    squares = np.array(
        [((group - mean) ** 2).sum() for group, mean in zip(groups, means, strict=True)], dtype=np.float64
    )
    return GroupMoments(sizes, means, squares)


def batch_deviation(moments: GroupMoments) -> float:
    """Standard deviation (n - 1) of a batch, merged from its groups' partials in prompt order; 0 for one reward.

    Merging is Chan's: M2 = M2a + M2b + d^2 na nb / (na + nb), with d the difference of the means.
    """
    count, mean, squares = 0, 0.0, 0.0
    for size, group_mean, group_squares in zip(
        moments.sizes.tolist(), moments.means.tolist(), moments.squares.tolist(), strict=True
    ):
        distance = group_mean - mean
        total = count + size
        squares += group_squares + distance * distance * count * size / total
        mean += distance * size / total
        count = total
    return float(np.sqrt(squares / (count - 1))) if count > 1 else 0.0


def group_mean(rewards: Float64, sizes: Int64) -> Float64:
    """A = r - mean(group) (Dr. GRPO, arXiv 2503.20783). Returns [sum(sizes)]."""
    return rewards - np.repeat(group_moments(rewards, sizes).means, sizes)


def group_std(rewards: Float64, sizes: Int64, epsilon: float) -> Float64:
    """A = (r - mean(group)) / (std(group) + epsilon), std over n - 1 (GRPO, arXiv 2402.03300). Returns [sum(sizes)]."""
    moments = group_moments(rewards, sizes)
    deviations = np.sqrt(moments.squares / np.maximum(sizes - 1, 1))
    return (rewards - np.repeat(moments.means, sizes)) / (np.repeat(deviations, sizes) + epsilon)


def batch_std(rewards: Float64, sizes: Int64, epsilon: float) -> Float64:
    """A = (r - mean(group)) / (std(batch) + epsilon), std over n - 1 (arXiv 2508.08221). Returns [sum(sizes)]."""
    moments = group_moments(rewards, sizes)
    return (rewards - np.repeat(moments.means, sizes)) / (batch_deviation(moments) + epsilon)


def advantages(rewards: Float64, sizes: Int64, normalise: Normalisation, epsilon: float) -> Float64:
    """The advantages under one of the three normalisations of `GrpoSpec.normalise`."""
    match normalise:
        case "group_std":
            return group_std(rewards, sizes, epsilon)
        case "group_mean":
            return group_mean(rewards, sizes)
        case "batch_std":
            return batch_std(rewards, sizes, epsilon)
