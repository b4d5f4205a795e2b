"""An entropy bonus that keeps the entropy at a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from yatt_core.algorithms.entropy.base import BONUS, ENTROPY, EntropyMethod


class AdaptiveEntropy(EntropyMethod):
    """Adaptive entropy control (Skywork-OR1, arXiv 2505.22312).

    After each iteration c becomes c + step if the mean token entropy e is below the target, otherwise max(c - step, 0). The
    bonus of the next iteration is c if e <= target, otherwise 0. c is part of the control state.
    """

    kind: Literal["adaptive"] = "adaptive"
    target: PositiveFloat = 0.2
    """Target of the mean token entropy, in nats."""
    step: PositiveFloat = 0.005
    """Change of the coefficient per iteration."""
    start: NonNegativeFloat = 0.0
    """The coefficient of the first iteration."""

    def bonus(self, state: Mapping[str, float]) -> float:
        """See `EntropyMethod`."""
        return state.get(BONUS, self.start)

    def after(self, state: Mapping[str, float], entropy: float) -> dict[str, float]:
        """See `EntropyMethod`."""
        before = state.get(ENTROPY, self.start)
        coefficient = before + self.step if entropy < self.target else max(before - self.step, 0.0)
        return {ENTROPY: coefficient, BONUS: coefficient if entropy <= self.target else 0.0}
