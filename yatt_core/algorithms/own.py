"""Losses, advantages, sources and workloads of your own: finds the function that a spec names, and the digest of its source.

A function is named as `package.module:function`, as an entry point of the group `yatt.losses`, `yatt.advantages`,
`yatt.sources` or `yatt.workloads`, or as a file, of which the run keeps a copy. It is a pure function of what the built-in
methods see and of its options; a workload is a class. The digest vouches for the source.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from yatt_core.errors import ConfigurationError
from yatt_core.installed import error_place, failure_text, find_function
from yatt_core.named_code import CodeFile, load_code

LOSSES = "yatt.losses"
ADVANTAGES = "yatt.advantages"
SOURCES = "yatt.sources"
WORKLOADS = "yatt.workloads"
_KEYS: Mapping[str, str] = {
    LOSSES: "algorithm.loss.",
    ADVANTAGES: "algorithm.advantage.",
    SOURCES: "data.sources ",
    WORKLOADS: "workload.",
}
"""What the keys that name a function begin with."""


class OwnCode(Protocol):
    """What a spec says about a function: either `function` or `file` names it."""

    @property
    def function(self) -> str | None: ...
    @property
    def file(self) -> str | None: ...
    @property
    def sha256(self) -> str | None: ...


def place_of(own: OwnCode, group: str) -> str:
    """Returns the key that names a function, and its name, for messages."""
    return f"{_KEYS[group]}file: {own.file}" if own.function is None else f"{_named_by(group)}: {own.function}"


def _named_by(group: str) -> str:
    """Returns the key that names installed code."""
    return f"{_KEYS[group]}{'kind' if group == WORKLOADS else 'function'}"


def own_file(own: OwnCode, group: str) -> CodeFile | None:
    """Returns the file that names a function; None for installed code."""
    if own.file is None:
        return None
    return CodeFile.named(f"{_KEYS[group]}file", own.file, own.sha256)


def own_function(own: OwnCode, group: str, run_folder: Path | None = None) -> Callable[..., Any]:
    """Returns a function. Raises `ConfigurationError` if it cannot be found, and as `load_code` does.

    run_folder: folder of the run, which has its own copy of a file; needed once in a process.
    """
    code = own_file(own, group)
    return _found(own.function or "", group) if code is None else load_code(code, run_folder)


def call(own: OwnCode, group: str, *given: Any) -> Any:
    """Returns a function's result. Raises `ConfigurationError` if it cannot be found or raises an exception."""
    function = own_function(own, group)
    try:
        return function(*given)
    except Exception as error:
        where = error_place(error)
        raise ConfigurationError(f"{place_of(own, group)} failed: {where}: {failure_text(error)}") from error


def source_digest(name: str, group: str) -> str:
    """Returns the SHA-256 of the file of the module that a name stands for, which is not executed; its parent packages are.

    Raises `ConfigurationError` if there is no such module, or if its source is not a Python file.
    """
    place = f"{_named_by(group)}: {name!r}"
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


def verify_source(own: OwnCode, group: str, exact: bool, run_folder: Path | None = None) -> None:
    """Finds a function. Raises `ConfigurationError` if its source is not the one that the spec stands for.

    exact: whether installed code has to be what it was; a file always has to.
    run_folder: as for `own_function`.
    """
    if own.function is not None:
        found = source_digest(own.function, group)
        if exact and found != (own.sha256 or found):
            raise ConfigurationError(
                f"{_named_by(group)}: the source of {own.function} has changed: its sha256 is {found}, but the spec says "
                f"{own.sha256}; restore it, or start a new run with `yatt train`"
            )
    own_function(own, group, run_folder)


@cache
def _found(name: str, group: str) -> Callable[..., Any]:
    return find_function(name, group, f"{_named_by(group)}: {name!r}")
