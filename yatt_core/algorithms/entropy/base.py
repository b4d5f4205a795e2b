"""What every method that keeps the policy's entropy up implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from yatt_core.section import SpecModel

if TYPE_CHECKING:
    import torch

ENTROPY = "entropy"
BONUS = "entropy_bonus"
"""Keys of the control state: an adaptive coefficient, and what is applied of it in the next update."""


class EntropyMethod(SpecModel):
    """A method with its settings; `kind` names it."""

    kind: str

    in_loss: ClassVar[bool] = True
    """Whether the loss contains the entropy."""
    freezes: ClassVar[bool] = False
    """Whether the gradient of some tokens is stopped, which takes the log-probabilities before the first step."""

    def bonus(self, state: Mapping[str, float]) -> float:
        """Returns the coefficient of the mean token entropy in the objective. state: coefficients in the control state."""
        return 0.0

    def after(self, state: Mapping[str, float], entropy: float) -> dict[str, float]:
        """Returns the coefficients after an update. entropy: mean token entropy during it."""
        return {}

    def frozen(self, log_probs: torch.Tensor, advantages: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Returns a mask of the tokens of a step that get no gradient, [T].

        log_probs: [T], before the first step.
        order: [T], a seeded permutation.
        """
        raise NotImplementedError
