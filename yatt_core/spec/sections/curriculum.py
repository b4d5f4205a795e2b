"""How a run's mixture of prompts follows the policy's success."""

from __future__ import annotations

from typing import Self

from pydantic import Field, PositiveInt, model_validator

from yatt_core.spec.base import SpecModel


class RetireSpec(SpecModel):
    """Prompts that the policy has solved are no longer drawn."""

    at: float = Field(default=1.0, gt=0.0, le=1.0)
    """Fraction of correct responses in a group from which on its prompt counts as solved."""
    return_after: PositiveInt | None = None
    """Number of iterations after which a solved prompt is drawn again; `null`: never, unless all prompts are solved."""


class CurriculumSpec(SpecModel):
    """Pools of prompts whose shares of the draws follow the policy's success rate on them."""

    field: str | None = None
    """Key of the rows that divides each source into pools of equal value, such as a level of difficulty; dots separate
    nested keys. `null`: each source is a pool."""
    target: float = Field(default=0.5, ge=0.0, le=1.0)
    """Success rate at which a pool is drawn from most; its share falls with the distance from it."""
    min_share: float = Field(default=0.05, ge=0.0, le=1.0)
    """Minimum share of a pool in the draws, or equal shares where there are too many pools for it."""
    max_share: float = Field(default=1.0, gt=0.0, le=1.0)
    """Maximum share of a pool in the draws, or equal shares where there are too few pools for it."""
    decay: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Weight of the past in the moving average of a pool's success rate; 0: the last iteration alone counts."""
    retire: RetireSpec | None = None
    """`null`: solved prompts are drawn as all others."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.min_share > self.max_share:
            raise ValueError(f"min_share {self.min_share:g} is above max_share {self.max_share:g}")
        return self
