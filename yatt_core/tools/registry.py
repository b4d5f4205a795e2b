"""Finds tools: entry points of the group `yatt.tools`, and dotted names of installed code.

Consumes a tool's function name and options; produces the function. Imports nothing heavy: the process of tools loads this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from yatt_core.errors import ConfigurationError
from yatt_core.installed import find_function

GROUP = "yatt.tools"


class NamedTool(Protocol):
    """What a spec says of a tool."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


def find_tool(name: str, function: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """A tool's function. Raises `ConfigurationError` for what cannot be found or imported and for options it does not take."""
    place = f"rollout.tools.functions {name!r}: function {function!r}"
    found = find_function(function, GROUP, place)
    try:
        inspect.signature(found).bind_partial(**options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{place} does not take the options {sorted(options)}: {error}") from None
    return found


def check_tools(tools: Iterable[NamedTool]) -> None:
    """Looks every tool up. Raises as `find_tool`."""
    for tool in tools:
        find_tool(tool.name, tool.function, tool.options)
