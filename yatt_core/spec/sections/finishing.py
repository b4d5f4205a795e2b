"""When work finishes with what is there."""

from __future__ import annotations

import math

from pydantic import Field, PositiveFloat

from yatt_core.spec.base import SpecModel


class FinishSpec(SpecModel):
    """Leaves out what is not finished after a time, so that a few stragglers do not hold up everything.

    What is left out depends on the clock, so the run cannot be exact; it is recorded before it takes effect, and replay
    obeys the record. It is biased: what is slow is left out, for example long responses.
    """

    seconds: PositiveFloat
    """Time after which the rest is left out, from the beginning of the attempt at the phase."""
    at_least: float = Field(default=0.5, gt=0.0, le=1.0)
    """Fraction that must be finished; until then the phase goes on after the time, too."""

    def least(self, total: int) -> int:
        """Returns how many of `total` must be finished: at least one."""
        return max(1, math.ceil(self.at_least * total))
