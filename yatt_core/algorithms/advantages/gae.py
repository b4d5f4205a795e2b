"""PPO's advantage from a critic."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch
from yatt_core.algorithms.advantages.estimation import generalised_advantages, whitened


class GaeAdvantage(Advantage):
    """Generalised advantage estimation (arXiv 1506.02438) from the values of `algorithm.critic`.

    A_t = delta_t + gamma gae_lambda A_{t+1}, with delta_t = r_t + gamma V_{t+1} - V_t; the reward comes with the last token.
    """

    kind: Literal["gae"] = "gae"
    gamma: PositiveFloat = Field(default=1.0, le=1.0)
    """Discount factor gamma, per token."""
    gae_lambda: NonNegativeFloat = Field(default=0.95, le=1.0)
    """lambda: 0 relies on the critic's next value only, 1 on the observed rewards only."""
    normalise: Literal["batch_std", "none"] = "batch_std"
    """`batch_std`: the mean over the batch's tokens is subtracted from the advantages, which are then divided by
    the standard deviation."""

    @property
    def by_token(self) -> bool:
        """See `Advantage`."""
        return True

    @property
    def by_group(self) -> bool:
        """See `Advantage`."""
        return False

    @property
    def compares(self) -> bool:
        """False: the critic is the baseline."""
        return False

    def estimates(self, batch: RewardBatch) -> Float64:
        """Computes the advantages before they are normalised, [T]; with the values they add up to the returns."""
        assert batch.values is not None, "a spec with this advantage has a critic"
        return generalised_advantages(
            rewards=batch.at_last_tokens(),
            values=batch.values,
            lengths=batch.lengths,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        found = self.estimates(batch)
        return whitened(found, batch.epsilon) if self.normalise == "batch_std" else found
