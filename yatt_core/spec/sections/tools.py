"""Tools that a policy may call between its turns, and the bounds of calls."""

from __future__ import annotations

from typing import Any

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt

from yatt_core.spec.base import LONGEST_CALL_SECONDS, SpecModel


class ToolSpec(SpecModel):
    """One tool: a function of installed code. It runs in a process of its own, apart from the controller."""

    name: str = Field(pattern=r"^[a-zA-Z][a-zA-Z0-9_-]*$")
    """What the policy calls it by."""
    function: str
    """An entry point of the group `yatt.tools`, such as `calculator`, or a dotted name `package.module:function`."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments that the run sets; a call cannot."""
    description: str = ""
    """What it does, in words for the policy; needs a chat template that shows tools. Empty: the prompts tell of it."""
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    """JSON Schema of a call's arguments, shown with the description."""
    timeout_seconds: PositiveFloat = Field(default=10.0, le=LONGEST_CALL_SECONDS)
    """A call that takes longer is ended, and its result says so."""
    memory_mb: PositiveInt = Field(default=512, le=100_000_000)
    """MiB of address space that a call may take on top of the loaded function's."""
    deterministic: bool = True
    """The same arguments give the same result. An exact run needs it."""

    @property
    def schema_for_templates(self) -> dict[str, Any]:
        """The tool as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolsSpec(SpecModel):
    """Rollouts of several turns: a turn that calls a tool gets its result, and the policy goes on."""

    functions: tuple[ToolSpec, ...] = Field(min_length=1)
    """The tools; their names differ."""
    max_turns: int = Field(default=4, ge=2)
    """Most turns of the policy in a rollout; a call in the last one is not made, and the sample counts as truncated."""
    max_result_tokens: PositiveInt = 128
    """Most tokens between two turns: the result, which is cut to fit, and what the chat template puts around it."""
    parallel_calls: PositiveInt = 4
    """Calls that a controller has under way at once."""
