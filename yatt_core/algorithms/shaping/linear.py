"""A penalty proportional to the length."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from yatt_core.algorithms.shaping.base import Float64, Int64, LengthPenalty


class LinearPenalty(LengthPenalty):
    """A linear length penalty: penalty length / max_new_tokens."""

    kind: Literal["linear"] = "linear"
    penalty: PositiveFloat
    """The penalty of a response of `rollout.max_new_tokens` tokens."""

    def penalties(self, lengths: Int64, longest: int) -> Float64:
        """See `LengthPenalty`."""
        return self.penalty * lengths / longest
