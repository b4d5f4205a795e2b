"""What every part of a reward has, independent of where its value comes from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from yatt_core.spec.base import SpecModel

OnFailure = Literal["stop", "mask", "zero"]
FORMER_NAME = "on_error"
FORMER_VALUES = ("stop", "zero")
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
    on_failure: OnFailure = "stop"
    """What a failure on a sample does. `stop`: it stops the run. `mask`: the sample has no score and nothing is learnt from
    it. `zero`: the part scores 0. A function fails if it raises, hangs or does not return a number of at most 1e30 (also
    after weighting), a judge if it cannot be asked. Default: `stop` for functions, `mask` for judges and `code_tests`."""

    @model_validator(mode="before")
    @classmethod
    def _former_name(cls, given: Any) -> Any:
        """Reads `on_error`, the name of `on_failure` in specs of earlier versions."""
        if not isinstance(given, dict) or FORMER_NAME not in given:
            return given
        if "on_failure" in given:
            raise ValueError(f"{FORMER_NAME} is the former name of on_failure; leave it out")
        if given[FORMER_NAME] not in FORMER_VALUES:
            raise ValueError(f"{FORMER_NAME}: expected {' or '.join(FORMER_VALUES)}, or on_failure: mask")
        return {**{key: value for key, value in given.items() if key != FORMER_NAME}, "on_failure": given[FORMER_NAME]}

    @field_validator("name")
    @classmethod
    def _free_name(cls, name: str) -> str:
        if name in TAKEN_NAMES:
            raise ValueError(f"{name!r} is reserved: reward/{name} is a metric of the total; choose another name")
        return name
