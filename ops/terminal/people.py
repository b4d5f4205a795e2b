"""The person who calls a command: the name to record, the role that a command needs, and the answer to a question."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer

from flows.run.home import Home
from ops.people.caller import Caller, caller, token_taken_from
from ops.people.roles import Permission, refusal
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    PermissionOf = Callable[[tuple[str, ...]], Permission]


_home: ContextVar[Path | None] = ContextVar("home of the command", default=None)
"""The option `--home` of the command that runs."""
_identity: ContextVar[Mapping[str, str]] = ContextVar("identity of the caller", default=MappingProxyType({}))
"""The caller's token, as a variable; while a command runs, its environment, which actors inherit, does not contain it."""


def calling() -> Caller:
    """Returns who calls the command. Raises what `ops.people.caller.caller` raises."""
    return caller(Home.locate(_home.get()).folder, _identity.get() or os.environ)


def identity() -> Mapping[str, str]:
    """Returns the variables with which a child process that runs `yatt` acts as the same caller."""
    return _identity.get()


def acting_name() -> str:
    """Returns the name under which the command acts, for the audit chain."""
    return calling().person.name


def named(by: str | None, what: str) -> str:
    """Returns the name given with `--by`, else the name under which the command acts.

    what: what the person does, for the error message.

    Raises `ConfigurationError` if a token or a user's login name says that the caller is somebody else, and as `line_of_text`
    does.
    """
    found = calling()
    if by is None:
        return found.person.name
    if found.is_named and by != found.person.name:
        raise ConfigurationError(
            f"--by {by!r:.80}: your token or login name says that {found.person.name} {what}; leave --by out"
        )
    return line_of_text("--by", by)


def guard(command: Any, permission_of: PermissionOf, path: tuple[str, ...] = ()) -> None:
    """Makes every command below a click command check, before it runs, that the caller's role includes its permission."""
    for name, below in getattr(command, "commands", {}).items():
        guard(below, permission_of, (*path, name))
    if hasattr(command, "commands"):
        return
    invoke = command.invoke

    def checked(context: Any) -> Any:
        with token_taken_from(os.environ) as variables:
            before = _home.set(context.params.get("home")), _identity.set(variables)
            try:
                require(permission_of(path), " ".join(path))
                return invoke(context)
            finally:
                _home.reset(before[0])
                _identity.reset(before[1])

    command.invoke = checked


def require(permission: Permission, command: str) -> None:
    """Raises `ConfigurationError` if the caller's role does not include the permission.

    Every role includes reading, which therefore depends on the permissions of the files alone.
    """
    if permission is Permission.READ:
        return
    person = calling().person
    if permission not in person.permissions:
        raise ConfigurationError(f"yatt {command}: {refusal(person, permission)}")


def line_of_text(option: str, text: str) -> str:
    """Returns an option's text. Raises `ConfigurationError` for control characters, which a terminal would obey."""
    if not text.isprintable():
        raise ConfigurationError(f"{option}: expected a line of text without control characters (given: {text!r:.80})")
    return text


def agreed(question: str, yes: bool) -> bool:
    """Returns True if the person agrees, either by `--yes` or in answer to the question.

    Raises `ConfigurationError` without `--yes` if nobody can be asked, since this is no terminal.
    """
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError("--yes: required, since there is no terminal on which to ask")
    return typer.confirm(question, err=True)
