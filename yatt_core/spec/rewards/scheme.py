"""The reward of a response: weighted parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, PositiveFloat, model_validator

from yatt_core.code_names import CodeFileName, require_one_name
from yatt_core.naming import Names
from yatt_core.spec.base import LONGEST_CALL_SECONDS, SpecModel
from yatt_core.spec.rewards.critique import CritiqueSpec, critique_mistakes
from yatt_core.spec.rewards.judges import EndpointPart, GenerativePart, JudgePart, RewardModelPart, TemplatedPart
from yatt_core.spec.rewards.parts import FORMER_NAME, RewardPartBase

PROGRAMS = "code_tests"
"""The built-in function that executes programs."""
PLAIN_PART = "function"
"""The kind of a part without an explicit `kind`."""


class FunctionPart(RewardPartBase):
    """A function of prompt and response: either `function` or `file` names it."""

    kind: Literal["function"] = "function"
    function: Annotated[str | None, Names("code")] = None
    """An entry point of the group `yatt.rewards`, or a dotted name `package.module:function` of installed code."""
    file: Annotated[CodeFileName | None, Names("code")] = None
    """A function in a Python file, as `path/of/file.py:function`; YATT executes this file. The run keeps its own copy."""
    sha256: Annotated[str | None, Names("code")] = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the file's bytes; no other contents are executed. Set when the spec is read, unless it is given."""
    options: Annotated[dict[str, JsonValue], Names("code")] = Field(default_factory=dict)
    """Keyword arguments passed to the function."""
    timeout_seconds: PositiveFloat = Field(default=10.0, le=LONGEST_CALL_SECONDS)
    """A call that takes longer counts as failed."""
    concurrency: int = Field(default=16, ge=1, le=1024)
    """Maximum number of calls of a coroutine function (`async def`) that a controller makes at once."""

    @model_validator(mode="before")
    @classmethod
    def _failing_sandboxes_say_nothing_about_code(cls, given: Any) -> Any:
        """Sets the default of `on_failure` for `code_tests`, whose sandbox may fail."""
        if not isinstance(given, dict) or given.get("function") != PROGRAMS:
            return given
        return given if {"on_failure", FORMER_NAME} & set(given) else {**given, "on_failure": "mask"}

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        require_one_name(self.function, self.file, self.sha256)
        return self

    @property
    def path(self) -> Path | None:
        """The file that defines the function; None for installed code."""
        return None if self.file is None else Path(self.file.rpartition(":")[0])

    @property
    def described(self) -> str:
        """The key that names the function, with its value, for messages."""
        return f"function {self.function!r}" if self.file is None else f"file {self.file!r}"


def _function_by_default(part: Any) -> Any:
    """Sets the kind of a part without one to function."""
    return {"kind": PLAIN_PART, **part} if isinstance(part, dict) else part


RewardPart = Annotated[
    Annotated[FunctionPart | GenerativePart | EndpointPart | RewardModelPart, Field(discriminator="kind")],
    BeforeValidator(_function_by_default),
]


class RewardSpec(SpecModel):
    """The total reward: the weighted sum of the parts."""

    parts: tuple[RewardPart, ...] = ()
    """Functions and judges with unique names. A part without a `kind` is a function. None if nothing is sampled."""
    accuracy_part: str | None = Field(default=None, min_length=1)
    """The part of kind `function` that decides whether a response is correct, also in SFT and evaluation; by
    default the first one. Its weight may be 0."""
    correct_at: float = 0.999
    """A response is correct if its accuracy part scores at least this value."""
    critique: CritiqueSpec | None = None
    """Rewards of single tokens, lower in wrong steps; `null`: all tokens of a response share its reward."""

    @property
    def functions(self) -> tuple[FunctionPart, ...]:
        """The parts that are functions, in order."""
        return tuple(part for part in self.parts if isinstance(part, FunctionPart))

    @property
    def judges(self) -> tuple[JudgePart, ...]:
        """The parts that are judges, in order."""
        return tuple(part for part in self.parts if not isinstance(part, FunctionPart))

    @property
    def may_mask(self) -> bool:
        """Whether a response may end up without a score."""
        return any(
            part.on_failure == "mask" or (isinstance(part, TemplatedPart) and part.on_unparsed == "absent")
            for part in self.parts
        )

    @property
    def accuracy_name(self) -> str:
        """Name of the part that decides whether a response is correct; empty if no part is a function."""
        return self.accuracy_part or next((part.name for part in self.functions), "")

    def mistakes(self) -> Iterator[str]:
        """Yields one line per contradiction between parts, each starting with the key."""
        names = [part.name for part in self.parts]
        functions = [part.name for part in self.functions]
        if not names:
            yield "rewards: missing; what the policy samples has to be scored; expected parts, one of them of kind function"
            return
        if len(set(names)) < len(names):
            yield f"rewards.parts: duplicate part name in {names}"
        if not functions:
            yield (
                "rewards.parts: a part of kind function is needed to decide whether a response is correct, because a "
                "judge cannot measure the accuracy of what it rewards; add one, with weight 0 if it must not count"
            )
        elif self.accuracy_name not in names:
            yield f"rewards.accuracy_part: there is no part {self.accuracy_name!r}; expected one of {names}"
        elif self.accuracy_name not in functions:
            yield f"rewards.accuracy_part: {self.accuracy_name!r} is a judge; expected one of the functions {functions}"
        yield from critique_mistakes(self.critique, self.parts, self.judges, self.accuracy_name)
