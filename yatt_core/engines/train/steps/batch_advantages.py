"""Advantages and reward moments of a whole batch, which every rank computes for itself; both ignore padding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from yatt_core.algorithms.advantages import advantages
from yatt_core.algorithms.moments import RewardMoments, group_moments, merged
from yatt_core.engines.train.steps.plan import seeded_permutation
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.algorithm import GrpoSpec

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def batch_advantages(spec: RunSpec, batch: ExperienceBatch, rewards: Float64, branch: int, iteration: int) -> Float64:
    """Returns one advantage per sample, [N]; 0 for padding.

    rewards: [N], the batch's rewards, possibly reduced by a KL penalty.
    """
    algorithm, learned, values = spec.algorithm, batch.learned, np.zeros(len(batch))
    assert isinstance(algorithm, GrpoSpec), "a critic computes its own advantages"
    if not learned.any():
        return values
    found = advantages(rewards[learned], _learned_sizes(batch), algorithm.normalise, algorithm.epsilon)
    if algorithm.permute_advantages:
        found = found[seeded_permutation(len(found), "permute_advantages", spec.seed, branch, iteration)]
    values[learned] = found
    return values


def moments_after(before: RewardMoments, batch: ExperienceBatch) -> RewardMoments:
    """Returns the moments of all rewards learned from so far, including a batch's."""
    if not batch.learned.any():
        return before
    return merged(before, group_moments(batch.rewards[batch.learned], _learned_sizes(batch)))


def _learned_sizes(batch: ExperienceBatch) -> Int64:
    """Returns the number of samples of each group that is not padding."""
    bounds = batch.group_offsets
    sizes: Int64 = np.diff(bounds)[batch.learned[bounds[:-1]]]
    return sizes
