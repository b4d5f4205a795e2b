"""What a response is worth: parts with weights."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, PositiveFloat

from yatt_core.spec.base import LONGEST_CALL_SECONDS, SpecModel
from yatt_core.spec.rewards.judges import EndpointPart, GenerativePart, JudgePart, RewardModelPart
from yatt_core.spec.rewards.parts import RewardPartBase

PLAIN_PART = "function"
"""The kind of a part that names none."""


class FunctionPart(RewardPartBase):
    """A function of prompt and response."""

    kind: Literal["function"] = "function"
    function: str
    """An entry point of the group `yatt.rewards`, or a dotted name `package.module:function` of installed code."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the function."""
    timeout_seconds: PositiveFloat = Field(default=10.0, le=LONGEST_CALL_SECONDS)
    """A call that takes longer counts as failed."""


def _function_by_default(part: Any) -> Any:
    """A part that names no kind is a function."""
    return {"kind": PLAIN_PART, **part} if isinstance(part, dict) else part


RewardPart = Annotated[
    Annotated[FunctionPart | GenerativePart | EndpointPart | RewardModelPart, Field(discriminator="kind")],
    BeforeValidator(_function_by_default),
]


class RewardSpec(SpecModel):
    """The total reward is the weighted sum of the parts."""

    parts: tuple[RewardPart, ...] = Field(min_length=1)
    """Functions and judges; their names differ. A part without a `kind` is a function."""
    accuracy_part: str | None = Field(default=None, min_length=1)
    """The part of kind `function` that tells right from wrong, in SFT and evaluation too; by default the first one. It may
    have weight 0."""
    correct_at: float = 0.999
    """A response is right when its accuracy part reaches this."""

    @property
    def functions(self) -> tuple[FunctionPart, ...]:
        """The parts that are functions, in their order."""
        return tuple(part for part in self.parts if isinstance(part, FunctionPart))

    @property
    def judges(self) -> tuple[JudgePart, ...]:
        """The parts that are judges, in their order."""
        return tuple(part for part in self.parts if not isinstance(part, FunctionPart))

    @property
    def accuracy_name(self) -> str:
        """Name of the part that tells right from wrong; empty where no part is a function."""
        return self.accuracy_part or next((part.name for part in self.functions), "")
