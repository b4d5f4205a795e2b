"""A KL coefficient that keeps the divergence at a target."""

from __future__ import annotations

from pydantic import PositiveFloat

from yatt_core.section import SpecModel

KL = "kl"
"""Key of the coefficient in the control state."""
LIMIT = 0.2


class AdaptiveKl(SpecModel):
    """A proportional controller in log space (arXiv 1909.08593).

    After each iteration the coefficient is multiplied by 1 + clip(kl / target - 1, -0.2, 0.2) x samples / horizon, where kl is
    the iteration's mean divergence per token. It is part of the control state.
    """

    target: PositiveFloat
    """Target of the mean divergence per token."""
    horizon: PositiveFloat = 10_000.0
    """Number of samples over which the coefficient changes by up to 20 %."""

    def after(self, coefficient: float, kl: float, samples: int) -> float:
        """Returns the coefficient after an iteration."""
        error = min(max(kl / self.target - 1.0, -LIMIT), LIMIT)
        return coefficient * (1.0 + error * samples / self.horizon)
