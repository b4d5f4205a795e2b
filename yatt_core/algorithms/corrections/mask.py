"""Masking by the importance weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from yatt_core.algorithms.corrections.weights import ImportanceCorrection
from yatt_core.algorithms.tokens import PolicyTokens

if TYPE_CHECKING:
    import torch


class MaskCorrection(ImportanceCorrection):
    """IcePop (arXiv 2510.18855): the weight is w if low <= w <= high, otherwise 0, without gradient.

    By sequence with low 0 and high 3, it is TRL's `sequence_mask`.
    """

    kind: Literal["mask"] = "mask"
    low: NonNegativeFloat = 0.5
    """Tokens, or responses, with a smaller weight are masked."""
    high: PositiveFloat = 5.0
    """Tokens, or responses, with a larger weight are masked."""

    @model_validator(mode="after")
    def _check_bounds(self) -> MaskCorrection:
        if self.high < self.low:
            raise ValueError(f"high: {self.high} is less than low {self.low}")
        return self

    def weights(self, tokens: PolicyTokens) -> torch.Tensor:
        """See `ImportanceCorrection`."""
        weights = self.raw_weights(tokens)
        return weights.masked_fill((weights < self.low) | (weights > self.high), 0.0)
