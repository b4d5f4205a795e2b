"""Looks up tools: entry points of the group `yatt.tools`, dotted names of installed code, and functions in files.

Consumes a tool's function name and options. Produces the function. Imports nothing heavy, because the tool
process loads this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from yatt_core.errors import ConfigurationError
from yatt_core.installed import find_function
from yatt_core.named_code import CodeFile, SentFile

GROUP = "yatt.tools"


class NamedTool(Protocol):
    """What a spec defines about a tool."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> str | None: ...
    @property
    def file(self) -> str | None: ...
    @property
    def sha256(self) -> str | None: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


def tool_file(tool: NamedTool) -> CodeFile | None:
    """Returns the file that defines a tool's function; None for installed code."""
    place = f"rollout.tools.functions {tool.name!r}: file"
    return None if tool.file is None else CodeFile.named(place, tool.file, tool.sha256)


def find_tool(name: str, function: str, options: Mapping[str, Any], file: SentFile | None = None) -> Callable[..., Any]:
    """Returns a tool's function.

    function: its name as the spec has it, or within the file.
    file: the file that defines it; None for installed code.

    Raises `ConfigurationError` if it cannot be found or imported, or does not accept the options.
    """
    if file is None:
        place = f"rollout.tools.functions {name!r}: function {function!r}"
        found = find_function(function, GROUP, place)
    else:
        place = f"rollout.tools.functions {name!r}: file {file.path!r}"
        found = file.find(function, place)
    try:
        inspect.signature(found).bind_partial(**options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{place} does not accept the options {sorted(options)}: {error}") from None
    return found


def read_tool(tool: NamedTool, run_folder: Path | None) -> tuple[str, SentFile | None]:
    """Returns the function's name and the file that defines it, as `find_tool` takes them.

    run_folder: folder of the run, which has its own copy of a file; None before there is a run.

    Raises as `read_code` does.
    """
    code = tool_file(tool)
    if code is None:
        return tool.function or "", None
    return code.attribute, SentFile.read(code, run_folder)


def check_tools(tools: Iterable[NamedTool], run_folder: Path | None = None) -> None:
    """Looks up every tool. Raises as `find_tool` and `read_tool` do.

    run_folder: as for `read_tool`.
    """
    for tool in tools:
        function, file = read_tool(tool, run_folder)
        find_tool(tool.name, function, tool.options, file)
