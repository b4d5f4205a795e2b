"""Tools that a policy may call between its turns, and their limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, model_validator

from yatt_core.code_names import CodeFileName, require_one_name
from yatt_core.naming import Names
from yatt_core.spec.base import LONGEST_CALL_SECONDS, SpecModel


class ToolSpec(SpecModel):
    """A tool: a function that runs in a process of its own, separate from the controller."""

    name: str = Field(pattern=r"^[a-zA-Z][a-zA-Z0-9_-]*$")
    """Name by which the policy calls the tool."""
    function: Annotated[str | None, Names("code")] = None
    """An entry point of the group `yatt.tools`, such as `calculator`, or a dotted name `package.module:function`."""
    file: Annotated[CodeFileName | None, Names("code")] = None
    """A function in a Python file, as `path/of/file.py:function`. The run keeps its own copy and executes only that."""
    sha256: Annotated[str | None, Names("code")] = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the file's bytes; no other contents are executed. Set when the spec is read, unless it is given."""
    options: Annotated[dict[str, JsonValue], Names("code")] = Field(default_factory=dict)
    """Keyword arguments set by the run; a call cannot override them."""
    description: str = ""
    """What the tool does, as shown to the policy; needs a chat template that supports tools. Empty: the prompts
    describe the tool."""
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    """JSON Schema of a call's arguments, shown with the description."""
    timeout_seconds: PositiveFloat = Field(default=10.0, le=LONGEST_CALL_SECONDS)
    """A call that takes longer is aborted, and its result reports the timeout."""
    memory_mb: PositiveInt = Field(default=512, le=100_000_000)
    """Maximum address space of a call in MiB, on top of that of the loaded function."""
    deterministic: bool = True
    """Whether the same arguments always give the same result, as an exact run requires."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        require_one_name(self.function, self.file, self.sha256)
        return self

    @property
    def schema_for_templates(self) -> dict[str, Any]:
        """The tool in the format of chat templates."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolsSpec(SpecModel):
    """Multi-turn rollouts: if a turn calls a tool, the policy receives the result and continues."""

    functions: tuple[ToolSpec, ...] = Field(min_length=1)
    """The tools; their names must be unique."""
    max_turns: int = Field(default=4, ge=2)
    """Maximum number of policy turns in a rollout; a call in the last one is not executed, and the sample counts
    as truncated."""
    max_result_tokens: PositiveInt = 128
    """Maximum number of tokens between two turns: the result, which is shortened to fit, and the chat template's
    tokens around it."""
    parallel_calls: PositiveInt = 4
    """Maximum number of calls that a controller runs at once."""

    @property
    def text_parameters(self) -> Iterator[tuple[str, str]]:
        """The names of tool and parameter of each parameter that is a text by the tool's schema."""
        for tool in self.functions:
            properties = tool.parameters.get("properties")
            for name, schema in properties.items() if isinstance(properties, dict) else ():
                if isinstance(schema, dict) and schema.get("type") == "string":
                    yield tool.name, name
