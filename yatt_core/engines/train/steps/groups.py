"""Which responses of a batch an objective compares, as indices of samples.

Consumes a batch of which each prompt's group has one or two samples. Produces the groups of an optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yatt_core.experience.batch import ExperienceBatch

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleGroups:
    """Groups of samples; `first`, `second` and `desirable` are as in `Scores`."""

    first: Int64
    second: Int64
    desirable: Bool

    def within(self, samples: Int64) -> SampleGroups:
        """Returns the groups whose samples are among these; a step takes either all samples of a group or none."""
        chosen = np.isin(self.first, samples)
        second = self.second[chosen] if len(self.second) else self.second
        return SampleGroups(self.first[chosen], second, self.desirable[chosen])


def groups_of(batch: ExperienceBatch, labelled: bool) -> SampleGroups:
    """Returns the groups of a batch in canonical order, without padding.

    labelled: as in `Objective`. The label of a group is the reward of its first sample, 1 or 0. In a pair, the sample
        with the higher reward is preferred; two equal rewards make no pair.
    """
    starts = batch.group_offsets[:-1]
    starts = starts[batch.learned[starts]]
    if len(batch) == len(batch.group_offsets) - 1:
        return SampleGroups(starts, np.empty(0, dtype=np.int64), np.ones(len(starts), dtype=np.bool_))
    if labelled:
        return SampleGroups(starts, starts + 1, batch.rewards[starts] > 0.0)
    rewards = batch.rewards[starts], batch.rewards[starts + 1]
    starts = starts[rewards[0] != rewards[1]]
    better = (rewards[0] > rewards[1])[rewards[0] != rewards[1]]
    return SampleGroups(
        np.where(better, starts, starts + 1), np.where(better, starts + 1, starts), np.ones_like(better)
    )
