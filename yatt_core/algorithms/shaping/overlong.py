"""DAPO's soft overlong penalty."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from yatt_core.algorithms.shaping.base import Float64, Int64, LengthPenalty

PUBLISHED_SHARE = 5
"""DAPO's buffer has 4096 of 20480 tokens: a fifth."""


class OverlongPenalty(LengthPenalty):
    """Soft overlong punishment (DAPO, arXiv 2503.14476).

    penalty clip((length - (max_new_tokens - buffer)) / buffer, 0, 1): nothing up to the buffer, then a linear rise.
    """

    kind: Literal["overlong"] = "overlong"
    buffer: PositiveInt | None = None
    """Number of tokens below `rollout.max_new_tokens` in which the penalty rises; it has to be less than that limit. `null`:
    a fifth of the limit, rounded down, but at least 1, which is DAPO's 4096 of 20480."""
    penalty: PositiveFloat = 1.0
    """The penalty of a response of `rollout.max_new_tokens` tokens."""

    def penalties(self, lengths: Int64, longest: int) -> Float64:
        """See `LengthPenalty`."""
        buffer = self.buffer_of(longest)
        over: Float64 = (lengths - (longest - buffer)) / buffer
        return self.penalty * over.clip(0.0, 1.0)

    def buffer_of(self, longest: int) -> int:
        """Returns the buffer's tokens. longest: `rollout.max_new_tokens`."""
        return self.buffer or max(longest // PUBLISHED_SHARE, 1)
