"""Callbacks: observers of a run that users write."""

from __future__ import annotations

from pydantic import Field, JsonValue

from yatt_core.spec.base import SpecModel


class CallbackSpec(SpecModel):
    """An observer that is told of each commit and of the end of a session; it cannot change a result."""

    function: str
    """A class, or a function that returns the callback: `package.module:name`, or an entry point of the group
    `yatt.callbacks`."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Passed to it as keyword arguments."""
