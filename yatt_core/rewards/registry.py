"""Finds reward functions: entry points of the group `yatt.rewards`, and dotted names of installed code.

Consumes a `RewardPart`; produces its function with the part's options bound. A spec can name installed code, never bring any.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.spec.rewards import RewardPart

GROUP = "yatt.rewards"

RewardFunction = Callable[..., Any]
"""(prompt: Prompt, response: str, **options) -> float"""


def resolve(part: RewardPart) -> RewardFunction:
    """The part's function of (prompt, response), options bound.

    Raises `ConfigurationError` for an unknown name (with the nearest ones), for what cannot be imported or called, and for
    options that the function does not take.
    """
    place = f"rewards.parts {part.name!r}: function {part.function!r}"
    function = _find_dotted(part.function, place) if ":" in part.function else _find_entry_point(part.function, place)
    if not callable(function):
        raise ConfigurationError(f"{place} is {type(function).__name__}, it cannot be called")
    try:
        inspect.signature(function).bind(None, "", **part.options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{place} cannot be called as (prompt, response{''.join(f', {key}=...' for key in part.options)}): {error}"
        ) from None
    return functools.partial(function, **part.options)


def _find_entry_point(name: str, place: str) -> Any:
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name not in installed:
        near = difflib.get_close_matches(name, installed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(installed)) or 'none'}"
        raise ConfigurationError(f"{place} is no entry point of {GROUP!r}; {hint} (or write package.module:function)")
    module, _, attribute = installed[name].value.partition(":")
    return _load(module, attribute, place)


def _find_dotted(name: str, place: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigurationError(f"{place}: write package.module:function")
    return _load(module, attribute, place)


def _load(module: str, attribute: str, place: str) -> Any:
    try:
        value: Any = importlib.import_module(module)
    except Exception as error:
        raise ConfigurationError(f"{place}: importing {module} failed: {type(error).__name__}: {error}") from error
    for name in attribute.split("."):
        if not hasattr(value, name):
            near = difflib.get_close_matches(name, dir(value), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"{place}: {module} has no {attribute!r}{hint}")
        value = getattr(value, name)
    return value
