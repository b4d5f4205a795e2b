"""Advantages of single tokens from rewards of single tokens, over a whole batch; each rank computes all of them.

Tokens that do not count, such as those of padding, have no part in it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from yatt_core.algorithms.advantages import advantages
from yatt_core.engines.train.steps.plan import seeded_permutation
from yatt_core.errors import DataError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.algorithm import GrpoSpec

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def rewards_of_tokens(batch: ExperienceBatch) -> Float64:
    """Returns the rewards of a batch's tokens, [T]. Raises `DataError` for an experience without them."""
    if batch.token_rewards is None:
        raise DataError("experience: has no token_rewards, which rewards.critique needs; it was collected without one")
    return batch.token_rewards.astype(np.float64)


def critique_advantages(
    spec: RunSpec, batch: ExperienceBatch, rewards: Float64, branch: int, iteration: int
) -> tuple[Float32, Float64]:
    """Returns the advantages of tokens, [T], 0 for those that do not count, and their mean in each sample, [N].

    Rewards are normalised over all tokens of a group (arXiv 2508.02298), as `advantages` normalises them over samples.

    rewards: [T], those of the batch's tokens, possibly reduced by a KL penalty.
    """
    algorithm, column = spec.algorithm, np.zeros(len(batch.response_tokens), dtype=np.float32)
    assert isinstance(algorithm, GrpoSpec), "no other algorithm takes rewards of tokens"
    running = np.concatenate(([0], np.cumsum(batch.loss_mask, dtype=np.int64)))
    bounds = running[batch.response_offsets]
    sizes = np.diff(bounds[batch.group_offsets])
    if not running[-1]:
        return column, np.zeros(len(batch))
    found = advantages(rewards[batch.loss_mask], sizes[sizes > 0], algorithm.normalise, algorithm.epsilon)
    if algorithm.permute_advantages:
        found = found[seeded_permutation(len(found), "permute_advantages", spec.seed, branch, iteration)]
    column[batch.loss_mask] = found
    sums = np.diff(np.concatenate(([0.0], np.cumsum(found)))[bounds])
    return column, sums / np.maximum(np.diff(bounds), 1)
