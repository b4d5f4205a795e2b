"""Looks up reward functions: entry points of the group `yatt.rewards`, dotted names of installed code, and files.

Consumes a `FunctionPart`. Produces a `FunctionName`, plain values that another process can look up, and from it the
function with its options and calling convention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from yatt_core.installed import find_function
from yatt_core.named_code import SentFile
from yatt_core.rewards.conventions import RewardFunction, reward_function

GROUP = "yatt.rewards"
LINEAR = "yatt_core.rewards.builtin:"
"""The module of functions that run in the calling process: their time is linear in a response's length."""


@dataclass(frozen=True, slots=True)
class FunctionName:
    """What is needed to find a function.

    place: the place that names it, for messages.
    function: an entry point or a dotted name; for a function in a file, its name in the file.
    file: the file that contains it; None for installed code.
    """

    place: str
    function: str
    options: Mapping[str, Any]
    file: SentFile | None = None

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> FunctionName:
        """Returns the name with these fields, which have been JSON."""
        file = fields["file"]
        return cls(fields["place"], fields["function"], fields["options"], file and SentFile(**file))


def is_linear(name: FunctionName) -> bool:
    """Returns True for a function that needs no process of its own."""
    found = [point.value for point in entry_points(group=GROUP, name=name.function)] if name.file is None else []
    return bool(found) and all(value.startswith(LINEAR) for value in found)


def resolve(name: FunctionName) -> RewardFunction:
    """Imports a function, or executes its file.

    Raises `ConfigurationError` for an unknown name (naming the closest ones), for a function that cannot be
    imported or called, and for options that it does not accept.
    """
    file = name.file
    function = find_function(name.function, GROUP, name.place) if file is None else file.find(name.function, name.place)
    return reward_function(function, name.options, name.place)
