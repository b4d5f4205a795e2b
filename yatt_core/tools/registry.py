"""Looks up tools: entry points of the group `yatt.tools`, and dotted names of installed code.

Consumes a tool's function name and options. Produces the function. Imports nothing heavy, because the tool
process loads this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from yatt_core.errors import ConfigurationError
from yatt_core.installed import find_function

GROUP = "yatt.tools"


class NamedTool(Protocol):
    """What a spec defines about a tool."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


def find_tool(name: str, function: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns a tool's function.

    Raises `ConfigurationError` if it cannot be found or imported, or does not accept the options.
    """
    place = f"rollout.tools.functions {name!r}: function {function!r}"
    found = find_function(function, GROUP, place)
    try:
        inspect.signature(found).bind_partial(**options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{place} does not accept the options {sorted(options)}: {error}") from None
    return found


def check_tools(tools: Iterable[NamedTool]) -> None:
    """Looks up every tool. Raises as `find_tool` does."""
    for tool in tools:
        find_tool(tool.name, tool.function, tool.options)
