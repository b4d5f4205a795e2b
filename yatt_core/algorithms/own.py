"""Losses, advantages, sources and workloads of your own: finds the function that a spec names, and the digest of its source.

A function is named as `package.module:function`, as an entry point of the group `yatt.losses`, `yatt.advantages`,
`yatt.sources` or `yatt.workloads`, or as a file, of which the run keeps a copy. It is a pure function of what the built-in
methods see and of its options; a workload is a class. The digest vouches for the source: the module's file, and for a workload,
which has many modules, all files of its package. YATT's own workloads have no digest: as for
a language model, the revision of YATT's code is a fact of the environment.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.metadata import entry_points, packages_distributions, version
from pathlib import Path
from typing import Any, Protocol

from yatt_core.digests import file_sha256, json_digest
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
YATT = __name__.partition(".")[0]
"""The package of YATT's own workloads."""


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
    except (Exception, SystemExit) as error:  # code that exits must not end the run
        where = error_place(error)
        raise ConfigurationError(f"{place_of(own, group)} failed: {where}: {failure_text(error)}") from error


def source_digest(name: str, group: str) -> str | None:
    """Returns the SHA-256 that vouches for the code that a name stands for, which is not executed; its parent packages are.

    Of the module's file; for a workload in a package, of all Python files of its top-level package, by their names.
    None for a workload of YATT itself, whose runs survive an update.

    Raises `ConfigurationError` if there is no such module, or if its source is not a Python file.
    """
    place = f"{_named_by(group)}: {name!r}"
    module = _module_of(name, group)
    file = _source_of(module, place)
    package = module.partition(".")[0]
    if group == WORKLOADS and package == YATT:
        return None
    found = importlib.util.find_spec(package)
    folders = None if found is None else found.submodule_search_locations
    if group != WORKLOADS or not folders:
        return file_sha256(file)
    return json_digest([_digests_of(folder, _python_files(folder)) for folder in map(Path, folders)])


def _module_of(name: str, group: str) -> str:
    """Returns the module of a name. Raises `ConfigurationError` for an entry point that is not there."""
    if ":" in name:
        return name.partition(":")[0]
    found = {point.name: point for point in entry_points(group=group)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigurationError(
            f"{_named_by(group)}: {name!r} is not an entry point of {group!r}; known: {known}; or write package.module:function"
        )
    return found[name].module


def _source_of(module: str, place: str) -> Path:
    """Returns the file of a module. Raises `ConfigurationError` if it is not a Python file."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{place}: {failure_text(error)}") from error
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ConfigurationError(f"{place}: there is no Python file of a module {module!r}")
    return Path(spec.origin)


def _python_files(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Returns the Python files of a package, relative to its folder and in order, each with its size and time of change."""
    found = sorted(
        (path.relative_to(folder).as_posix(), path.stat()) for path in folder.rglob("*.py") if path.is_file()
    )
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


@lru_cache(maxsize=8)
def _digests_of(folder: Path, files: tuple[tuple[str, int, int], ...]) -> dict[str, str]:
    """Returns the SHA-256 of files by name; of the same ones only once."""
    return {name: file_sha256(folder / name) for name, _, _ in files}


def distribution_of(own: OwnCode, group: str) -> str:
    """Returns name and version of the installed distribution that has a function; empty for a file, and for code beside it."""
    if own.function is None:
        return ""
    return _distributions_of(_module_of(own.function, group).partition(".")[0])


@cache
def _distributions_of(package: str) -> str:
    names = sorted(set(packages_distributions().get(package, ())))
    return ", ".join(f"{name} {version(name)}" for name in names)


def verify_source(own: OwnCode, group: str, exact: bool, run_folder: Path | None = None) -> None:
    """Finds a function. Raises `ConfigurationError` if its source is not the one that the spec stands for.

    exact: whether installed code that has a digest has to be what it was; a file always has to.
    run_folder: as for `own_function`.
    """
    if own.function is not None:
        found = source_digest(own.function, group)
        vouched = exact and found is not None
        if vouched and own.sha256 not in (None, found, _digest_of_file(own.function, group)):
            raise ConfigurationError(
                f"{_named_by(group)}: the source of {own.function} has changed: its sha256 is {found}, but the spec says "
                f"{own.sha256}; restore it, or start a new run with `yatt train`"
            )
    own_function(own, group, run_folder)


def _digest_of_file(name: str, group: str) -> str:
    """Returns the SHA-256 of the module's file alone, by which specs vouch for a workload that older versions have read."""
    return file_sha256(_source_of(_module_of(name, group), f"{_named_by(group)}: {name!r}"))


@cache
def _found(name: str, group: str) -> Callable[..., Any]:
    return find_function(name, group, f"{_named_by(group)}: {name!r}")
