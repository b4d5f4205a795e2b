"""What a response is worth: parts with weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, PositiveFloat

from yatt_core.spec.base import SpecModel


class RewardPart(SpecModel):
    """One reward function and its weight in the total."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Name of the part in metrics and experience."""
    function: str
    """An entry point of the group `yatt.rewards`, or a dotted name `package.module:function` of installed code."""
    weight: float = 1.0
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the function."""
    timeout_seconds: PositiveFloat = 10.0
    """A call that takes longer counts as failed."""
    on_error: Literal["stop", "zero"] = "stop"
    """After a call that raises, hangs or returns no finite number: stop the run, or score 0 and flag the sample."""


class RewardSpec(SpecModel):
    """The total reward is the weighted sum of the parts."""

    parts: tuple[RewardPart, ...] = Field(min_length=1)
    accuracy_part: str | None = None
    """The part that tells right from wrong; the first one by default."""
    correct_at: float = 0.999
    """A response is right when its accuracy part reaches this."""
