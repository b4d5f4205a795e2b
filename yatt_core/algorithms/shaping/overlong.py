"""DAPO's soft overlong penalty."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from yatt_core.algorithms.shaping.base import Float64, Int64, LengthPenalty


class OverlongPenalty(LengthPenalty):
    """Soft overlong punishment (DAPO, arXiv 2503.14476).

    penalty clip((length - (max_new_tokens - buffer)) / buffer, 0, 1): nothing up to the buffer, then a linear rise.
    """

    kind: Literal["overlong"] = "overlong"
    buffer: PositiveInt
    """Number of tokens below `rollout.max_new_tokens` in which the penalty rises."""
    penalty: PositiveFloat = 1.0
    """The penalty of a response of `rollout.max_new_tokens` tokens."""

    def penalties(self, lengths: Int64, longest: int) -> Float64:
        """See `LengthPenalty`."""
        over: Float64 = (lengths - (longest - self.buffer)) / self.buffer
        return self.penalty * over.clip(0.0, 1.0)
