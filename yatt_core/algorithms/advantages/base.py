"""What every advantage implements, and what it sees: the rewards of a batch, by response and by token, in float64.

Rewards are ordered by prompt. Each group is reduced on its own; batch-wide values are then reduced over the groups'
partials in prompt order, so that the result does not depend on how groups are spread over processes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from yatt_core.algorithms.moments import GroupMoments, RewardMoments, group_moments, merged
from yatt_core.round_off import are_distinct
from yatt_core.section import SpecModel

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """N responses to the prompts of G groups, with T counted tokens.

    rewards: [N], total rewards, ordered by group.
    sizes: [G], responses of each group, all positive.
    lengths: [N], counted tokens of each response; sums to T.
    epsilon: added to deviations that divide.
    penalties: [T], subtracted from the tokens' rewards; None if there are none, or if `rewards` includes them.
    values: [T], a critic's values before each token; None without a critic.
    parts: name of a reward part -> its weight in the total and its rewards, [N].
    """

    rewards: Float64
    sizes: Int64
    lengths: Int64
    epsilon: float
    penalties: Float64 | None = None
    values: Float64 | None = None
    parts: Mapping[str, tuple[float, Float64]] = field(default_factory=dict)

    def at_last_tokens(self) -> Float64:
        """Returns rewards of tokens, [T]: the response's at its last token, minus the penalties."""
        found = np.zeros(int(self.lengths.sum()))
        some = self.lengths > 0
        found[np.cumsum(self.lengths)[some] - 1] = self.rewards[some]
        return found if self.penalties is None else found - self.penalties


class Advantage(SpecModel):
    """An advantage with its settings; `kind` names it."""

    kind: str

    @property
    def by_token(self) -> bool:
        """Whether there is an advantage for each token instead of each response."""
        return False

    @property
    def by_group(self) -> bool:
        """Whether a group's advantages depend on nothing outside the group."""
        return True

    @property
    def compares(self) -> bool:
        """Whether a response alone in its group teaches nothing."""
        return True

    @abstractmethod
    def advantages(self, batch: RewardBatch) -> Float64:
        """Computes the advantages of responses, [N], or of tokens, [T]: a pure function of the batch and the settings."""


def centred(rewards: Float64, sizes: Int64) -> Float64:
    """Returns deviations from the group's mean; 0 for rewards that are equal up to rounding."""
    moments = group_moments(rewards, sizes)
    begins = np.cumsum(sizes) - sizes
    distinct = are_distinct(np.minimum.reduceat(rewards, begins), np.maximum.reduceat(rewards, begins))
    return np.where(np.repeat(distinct, sizes), rewards - np.repeat(moments.means, sizes), 0.0)


def group_normalised(rewards: Float64, sizes: Int64, epsilon: float) -> Float64:
    """Returns (r - mean(group)) / (std(group) + epsilon), std over n - 1."""
    moments = group_moments(rewards, sizes)
    deviations = np.sqrt(moments.squares / np.maximum(sizes - 1, 1))
    return centred(rewards, sizes) / (np.repeat(deviations, sizes) + epsilon)


def batch_deviation(moments: GroupMoments) -> float:
    """Returns the standard deviation (n - 1) of a batch, merged from its groups in prompt order; 0 for one reward."""
    return merged(RewardMoments(), moments).deviation
