"""Truncated importance sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat

from yatt_core.algorithms.corrections.weights import ImportanceCorrection
from yatt_core.algorithms.tokens import PolicyTokens

if TYPE_CHECKING:
    import torch


class TruncateCorrection(ImportanceCorrection):
    """Truncated importance sampling (TIS; IMPALA, arXiv 1802.01561): the weight is min(w, cap), without gradient."""

    kind: Literal["truncate"] = "truncate"
    cap: PositiveFloat
    """Maximum weight."""

    @property
    def ceiling(self) -> float:
        """See `ImportanceCorrection`."""
        return self.cap

    def weights(self, tokens: PolicyTokens) -> torch.Tensor:
        """See `ImportanceCorrection`."""
        return self.raw_weights(tokens).clamp(max=self.cap)
