"""Callbacks: observers of a run that users write."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from yatt_core.code_names import CodeFileName, require_one_name
from yatt_core.naming import Names
from yatt_core.spec.base import SpecModel


class CallbackSpec(SpecModel):
    """An observer that is told of each commit and of the end of a session; it cannot change a result."""

    function: Annotated[str | None, Names("code")] = None
    """A class, or a function that returns the callback: `package.module:name`, or an entry point of the group
    `yatt.callbacks`."""
    file: Annotated[CodeFileName | None, Names("code")] = None
    """A class or function in a Python file, as `path/of/file.py:name`. The run keeps its own copy and executes only that."""
    sha256: Annotated[str | None, Names("code")] = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the file's bytes; no other contents are executed. Set when the spec is read, unless it is given."""
    options: Annotated[dict[str, JsonValue], Names("code")] = Field(default_factory=dict)
    """Passed to it as keyword arguments."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        require_one_name(self.function, self.file, self.sha256)
        return self

    @property
    def name(self) -> str:
        """What names it, for messages."""
        return self.function or self.file or ""
