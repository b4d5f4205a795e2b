"""What a response is worth: parts with weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, PositiveFloat, field_validator

from yatt_core.spec.base import LONGEST_CALL_SECONDS, SpecModel

TAKEN_NAMES = frozenset({"mean", "std"})
"""`reward/mean` and `reward/std` are metrics of the total."""


class RewardPart(SpecModel):
    """One reward function and its weight in the total."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Name of the part in metrics and experience, other than `mean` and `std`."""
    function: str
    """An entry point of the group `yatt.rewards`, or a dotted name `package.module:function` of installed code."""
    weight: float = Field(default=1.0, ge=-1e9, le=1e9)
    """Factor of the part in the total; may be negative."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the function."""
    reads: Literal["last_turn", "response"] = "last_turn"
    """What it is given of a response of several turns: the last one, or all of it, calls and results of tools included."""
    timeout_seconds: PositiveFloat = Field(default=10.0, le=LONGEST_CALL_SECONDS)
    """A call that takes longer counts as failed."""
    on_error: Literal["stop", "zero"] = "stop"
    """After a call that raises, hangs or returns no number up to 1e30, weighted too: stop the run, or score 0 and flag it."""

    @field_validator("name")
    @classmethod
    def _free_name(cls, name: str) -> str:
        if name in TAKEN_NAMES:
            raise ValueError(f"{name!r} is taken: reward/{name} is a metric of the total; call the part something else")
        return name


class RewardSpec(SpecModel):
    """The total reward is the weighted sum of the parts."""

    parts: tuple[RewardPart, ...] = Field(min_length=1)
    """Reward functions; their names differ."""
    accuracy_part: str | None = None
    """The part that tells right from wrong; the first one by default."""
    correct_at: float = 0.999
    """A response is right when its accuracy part reaches this."""
