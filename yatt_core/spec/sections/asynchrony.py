"""How far generation may run ahead of learning. What an iteration contains follows from these numbers, never from the clock."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, model_validator

from yatt_core.spec.base import SpecModel

MOST_LAG = 8
"""The largest lag. Experience that is older is learnt from at a loss that no correction makes good."""


class AsynchronySpec(SpecModel):
    """What is generated while the trainer learns."""

    lag: NonNegativeInt = Field(default=0, le=MOST_LAG)
    """Iterations that are collected ahead of the one that is learnt from, while it is learnt from: iteration i is sampled
    under the weights of iteration i - 1 - lag. 0: each iteration is sampled under the newest weights."""
    streamed: bool = False
    """If true, the trainer prepares the logical shards of an iteration and computes their gradients, in the order of their
    numbers, while the rest of the iteration is generated under the same weights; one optimizer step follows. Needs lag 0."""

    @model_validator(mode="after")
    def _check_lag(self) -> AsynchronySpec:
        if self.streamed and self.lag:
            raise ValueError(
                "streamed: the trainer learns from what is generated meanwhile, but with a lag it is busy with an earlier "
                f"iteration then; expected lag 0 (given: {self.lag}), or false"
            )
        return self

    @property
    def overlaps(self) -> bool:
        """Whether engines generate while the trainer works."""
        return self.streamed or self.lag > 0
