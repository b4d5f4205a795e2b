"""Functions named in a spec, by entry point, dotted name of installed code or Python file, and their failures' texts.

A spec can name code but never contains code. Consumes a name and a group such as `yatt.rewards`, or the bytes of a
file; produces the function.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.printable import printable

DIFFUSERS = "diffusers"
MEGATRON = "megatron-core"
PEFT = "peft"
S3FS = "s3fs"

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
"""Matches an object's memory address in its repr: it is replaced in messages, since it differs in every process
and messages are part of the experience."""
FILE_MODULE = "yatt_file_"
"""Begins the names of the modules of files; the digest of their bytes follows."""
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
    """Returns an exception's text, identical in every process; what UTF-8 or a terminal cannot take as text is escaped."""
    try:
        said = str(error)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - the text comes from the exception's own class
        said = f"(its text is unavailable: {type(failure).__name__})"
    return printable(f"{type(error).__name__}: {_ADDRESS.sub('0x...', said)}")


def error_place(error: BaseException) -> str:
    """Returns `file:line` of an exception: the innermost place outside YATT and installed libraries if there is one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "yatt_core" not in frame.filename]
    own = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    last = (own or frames)[-1:] or traceback.extract_tb(error.__traceback__)[-1:]
    return f"{last[0].filename}:{last[0].lineno}" if last else ""


def find_in_file(path: Path, data: bytes, attribute: str, place: str) -> Callable[..., Any]:
    """Executes a Python file as a module of its own, unless this process has done so; returns a function in it.

    The module's name contains the digest of its bytes, so that files of the same name do not collide. The file's
    folder does not become importable.

    path: where the bytes come from, for tracebacks.
    place: the place that names the file, for messages.

    Raises `ConfigurationError` for a file that cannot be executed or lacks the function.
    """
    name = f"{FILE_MODULE}{hashlib.sha256(data).hexdigest()}"
    module = sys.modules.get(name)
    if module is None:
        module = ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # dataclasses and pickle look a class's module up there
        try:
            exec(compile(data, str(path), "exec", dont_inherit=True), module.__dict__)
        except (Exception, SystemExit) as error:  # a script that exits must not end the run successfully
            del sys.modules[name]
            where = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else error_place(error)
            raise ConfigurationError(f"{place}: {where or path}: cannot be executed: {failure_text(error)}") from error
    return _checked(_member(module, attribute, place, str(path)), place)


def find_executed(sha256: str, attribute: str, place: str) -> Callable[..., Any] | None:
    """Returns a function of a file that this process has executed with these bytes; None if it has not.

    Raises `ConfigurationError` if the file lacks the function.
    """
    module = sys.modules.get(f"{FILE_MODULE}{sha256}")
    if module is None:
        return None
    return _checked(_member(module, attribute, place, str(module.__file__)), place)


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
    return _member(value, attribute, place, module)


def _member(value: Any, attribute: str, place: str, module: str) -> Any:
    for name in attribute.split("."):
        if not hasattr(value, name):
            near = difflib.get_close_matches(name, dir(value), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"{place}: {module} has no {attribute!r}{hint}")
        value = getattr(value, name)
    return value
