"""Looks up reward functions: entry points of the group `yatt.rewards`, dotted names of installed code, and files.

Consumes a `FunctionPart`. Produces a `FunctionName`, plain values that another process can look up, and from it the
function with its options and calling convention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from yatt_core.installed import find_function, find_in_file
from yatt_core.rewards.conventions import RewardFunction, reward_function

GROUP = "yatt.rewards"
LINEAR = "yatt_core.rewards.builtin:"
"""The module of functions that run in the calling process: their time is linear in a response's length."""


@dataclass(frozen=True, slots=True)
class FunctionName:
    """What is needed to find a function.

    place: the place that names it, for messages.
    function: an entry point or a dotted name; for a function in a file, its name in the file.
    path: the file that contains it; empty for installed code.
    code: the contents of the file.
    """

    place: str
    function: str
    options: Mapping[str, Any]
    path: str = ""
    code: str = ""


def is_linear(name: FunctionName) -> bool:
    """Returns True for a function that needs no process of its own."""
    found = [point.value for point in entry_points(group=GROUP, name=name.function)] if not name.path else []
    return bool(found) and all(value.startswith(LINEAR) for value in found)


def resolve(name: FunctionName) -> RewardFunction:
    """Imports a function, or executes its file.

    Raises `ConfigurationError` for an unknown name (naming the closest ones), for a function that cannot be
    imported or called, and for options that it does not accept.
    """
    if name.path:
        function = find_in_file(Path(name.path), name.code.encode("latin-1"), name.function, name.place)
    else:
        function = find_function(name.function, GROUP, name.place)
    return reward_function(function, name.options, name.place)
