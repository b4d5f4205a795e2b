"""The advantages of a whole batch, which every rank computes for itself; padding has none and enters no statistic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from yatt_core.algorithms.advantages import advantages
from yatt_core.data.batch import ExperienceBatch
from yatt_core.engines.train.plan import seeded_permutation
from yatt_core.spec.run import RunSpec

Float64 = npt.NDArray[np.float64]


def batch_advantages(spec: RunSpec, batch: ExperienceBatch, rewards: Float64, branch: int, iteration: int) -> Float64:
    """One number per sample, [N], 0 for padding. rewards: [N], those of the batch or what a pull on them left."""
    algorithm, learnt, values = spec.algorithm, batch.learnt, np.zeros(len(batch))
    if not learnt.any():
        return values
    bounds = batch.group_offsets
    sizes = np.diff(bounds)[learnt[bounds[:-1]]]
    found = advantages(rewards[learnt], sizes, algorithm.normalise, algorithm.epsilon)
    if algorithm.permute_advantages:
        found = found[seeded_permutation(len(found), "permute_advantages", spec.seed, branch, iteration)]
    values[learnt] = found
    return values
