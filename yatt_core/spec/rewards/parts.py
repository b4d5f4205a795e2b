"""What every part of a reward has, whoever gives its value."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from yatt_core.spec.base import SpecModel

TAKEN_NAMES = frozenset({"mean", "std"})
"""`reward/mean` and `reward/std` are metrics of the total."""


class RewardPartBase(SpecModel):
    """A name, and a weight in the total."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    """Name of the part in metrics and experience, other than `mean` and `std`."""
    weight: float = Field(default=1.0, ge=-1e9, le=1e9)
    """Factor of the part in the total; may be negative, or 0 for a part that is only measured."""
    reads: Literal["last_turn", "response"] = "last_turn"
    """What it is given of a response of several turns: the last one, or all of it, calls and results of tools included."""
    on_error: Literal["stop", "zero"] = "stop"
    """After a failure on a sample (a function that raises, hangs or returns no number up to 1e30, weighted too; a judge that
    gives no usable answer): stop the run, or score 0 and flag it."""

    @field_validator("name")
    @classmethod
    def _free_name(cls, name: str) -> str:
        if name in TAKEN_NAMES:
            raise ValueError(f"{name!r} is taken: reward/{name} is a metric of the total; call the part something else")
        return name
