"""Losses, advantages and sources of your own: finds the function that a spec names, and the digest of its source.

A function is named as `package.module:function`, or as an entry point of the group `yatt.losses`, `yatt.advantages` or
`yatt.sources`. It is a pure function of what the built-in methods see and of its options. The digest vouches for the source.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.installed import error_place, failure_text, find_function

LOSSES, ADVANTAGES, SOURCES = "yatt.losses", "yatt.advantages", "yatt.sources"
PLACES: Mapping[str, str] = {
    LOSSES: "algorithm.loss.function",
    ADVANTAGES: "algorithm.advantage.function",
    SOURCES: "data.sources function",
}


def call(name: str, group: str, *given: Any) -> Any:
    """Returns a function's result. Raises `ConfigurationError` if it cannot be found or raises an exception.

    name: as the spec names it.
    """
    function = _found(name, group)
    try:
        return function(*given)
    except Exception as error:
        where = error_place(error)
        raise ConfigurationError(f"{PLACES[group]}: {name} failed: {where}: {failure_text(error)}") from error


def source_digest(name: str, group: str) -> str:
    """Returns the SHA-256 of the file that defines a function, without executing it.

    Raises `ConfigurationError` if there is no such module, or if its source is not a Python file.
    """
    place = f"{PLACES[group]}: {name!r}"
    module = name.partition(":")[0]
    if ":" not in name:
        found = {point.name: point for point in entry_points(group=group)}
        if name not in found:
            known = ", ".join(sorted(found)) or "none"
            raise ConfigurationError(
                f"{place} is not an entry point of {group!r}; known: {known}; or write package.module:function"
            )
        module = found[name].module
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{place}: {failure_text(error)}") from error
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ConfigurationError(f"{place}: there is no Python file of a module {module!r}")
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def verify_source(name: str, group: str, sha256: str | None) -> None:
    """Raises `ConfigurationError` if a function's source is not the one that the spec stands for."""
    found = source_digest(name, group)
    _found(name, group)
    if found != (sha256 or found):
        raise ConfigurationError(
            f"{PLACES[group]}: the source of {name} has changed: its sha256 is {found}, but the spec says {sha256}; restore "
            "it, or start a new run with `yatt train`"
        )


@cache
def _found(name: str, group: str) -> Callable[..., Any]:
    return find_function(name, group, f"{PLACES[group]}: {name!r}")
