"""The reward of a response: weighted parts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, PositiveFloat

from yatt_core.spec.base import LONGEST_CALL_SECONDS, SpecModel
from yatt_core.spec.rewards.judges import EndpointPart, GenerativePart, JudgePart, RewardModelPart
from yatt_core.spec.rewards.parts import RewardPartBase

PLAIN_PART = "function"
"""The kind of a part without an explicit `kind`."""


class FunctionPart(RewardPartBase):
    """A function of prompt and response."""

    kind: Literal["function"] = "function"
    function: str
    """An entry point of the group `yatt.rewards`, or a dotted name `package.module:function` of installed code."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments passed to the function."""
    timeout_seconds: PositiveFloat = Field(default=10.0, le=LONGEST_CALL_SECONDS)
    """A call that takes longer counts as failed."""


def _function_by_default(part: Any) -> Any:
    """Sets the kind of a part without one to function."""
    return {"kind": PLAIN_PART, **part} if isinstance(part, dict) else part


RewardPart = Annotated[
    Annotated[FunctionPart | GenerativePart | EndpointPart | RewardModelPart, Field(discriminator="kind")],
    BeforeValidator(_function_by_default),
]


class RewardSpec(SpecModel):
    """The total reward: the weighted sum of the parts."""

    parts: tuple[RewardPart, ...] = Field(min_length=1)
    """Functions and judges with unique names. A part without a `kind` is a function."""
    accuracy_part: str | None = Field(default=None, min_length=1)
    """The part of kind `function` that decides whether a response is correct, also in SFT and evaluation; by
    default the first one. Its weight may be 0."""
    correct_at: float = 0.999
    """A response is correct if its accuracy part scores at least this value."""

    @property
    def functions(self) -> tuple[FunctionPart, ...]:
        """The parts that are functions, in order."""
        return tuple(part for part in self.parts if isinstance(part, FunctionPart))

    @property
    def judges(self) -> tuple[JudgePart, ...]:
        """The parts that are judges, in order."""
        return tuple(part for part in self.parts if not isinstance(part, FunctionPart))

    @property
    def accuracy_name(self) -> str:
        """Name of the part that decides whether a response is correct; empty if no part is a function."""
        return self.accuracy_part or next((part.name for part in self.functions), "")
