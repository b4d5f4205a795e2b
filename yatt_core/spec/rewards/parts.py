"""What every part of a reward has, independent of where its value comes from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from yatt_core.spec.base import SpecModel

TAKEN_NAMES = frozenset({"mean", "std"})
"""Reserved names: `reward/mean` and `reward/std` are metrics of the total reward."""


class RewardPartBase(SpecModel):
    """The name of a part and its weight in the total."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    """Name of the part in metrics and experience, other than `mean` and `std`."""
    weight: float = Field(default=1.0, ge=-1e9, le=1e9)
    """Weight of the part in the total; may be negative, or 0 for a part that is only measured."""
    reads: Literal["last_turn", "response", "final"] = "last_turn"
    """What the part receives of a response: the last turn, the whole response including tool calls and results, or the
    last turn without its thoughts, which is empty if they do not end."""
    on_error: Literal["stop", "zero"] = "stop"
    """What to do after a failure on a sample: stop the run, or score 0 and mark the sample. A function fails
    if it raises, hangs or does not return a number of at most 1e30 (also after weighting), a judge if it gives no
    usable answer."""

    @field_validator("name")
    @classmethod
    def _free_name(cls, name: str) -> str:
        if name in TAKEN_NAMES:
            raise ValueError(f"{name!r} is reserved: reward/{name} is a metric of the total; choose another name")
        return name
