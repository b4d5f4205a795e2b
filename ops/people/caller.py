"""Who calls a command, and in which role.

Consumes `YATT_TOKEN` of the environment, the login name, and the users of the home folder; produces a `Caller`. Without a token
and without users that have login names, everyone who can use the files may do everything: on one machine the permissions of
the files are the real boundary, and these roles prevent mistakes, not attacks by who owns the files.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.people.roles import Permission, Person, Role, refusal
from ops.people.tokens import TokenStore
from ops.people.users import User, UserStore
from yatt_core.errors import ConfigurationError

TOKEN_VARIABLE = "YATT_TOKEN"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls a command.

    is_named: whether a token or a user's login name says who it is; the caller cannot choose another name then.
    """

    person: Person
    is_named: bool


@contextmanager
def token_taken_from(environment: MutableMapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Takes the token out of an environment, which child processes inherit, for the time of the block; yields it alone."""
    token = environment.pop(TOKEN_VARIABLE, None)
    try:
        yield {} if token is None else {TOKEN_VARIABLE: token}
    finally:
        if token is not None:
            environment[TOKEN_VARIABLE] = token


def caller(folder: Path, variables: Mapping[str, str]) -> Caller:
    """Returns who calls a command on a home folder.

    variables: the environment, or the part of it that may contain a token.

    Raises `ConfigurationError` if the token in the environment is not valid, or a file of users or tokens cannot be used.
    """
    token = variables.get(TOKEN_VARIABLE, "").strip()
    if token:
        person = TokenStore(folder).person_of(token)
        if person is None:
            raise ConfigurationError(
                f"the token in {TOKEN_VARIABLE} is unknown in {folder}, was revoked or has expired; unset the variable, or "
                "create a token with `yatt token create`"
            )
        return Caller(person, is_named=True)
    users = UserStore(folder)
    return of_login(login_name(), users.all(), owns=_owns(users.path))


def permitted(folder: Path, permission: Permission) -> Person:
    """Returns who calls a function of the Python API on a home folder.

    Raises `ConfigurationError` if the role does not include the permission, and as `caller` does.
    """
    person = caller(folder, os.environ).person
    if permission not in person.permissions:
        raise ConfigurationError(refusal(person, permission))
    return person


def of_login(login: str, users: tuple[User, ...], owns: bool) -> Caller:
    """Returns the caller with a login name.

    owns: whether the caller's account owns the file of users, and could change it anyway.
    """
    for user in users:
        if login in user.logins:
            return Caller(Person(user.name, user.role, user.is_author), is_named=True)
    mapped = any(user.logins for user in users)
    return Caller(Person(login, Role.VIEWER if mapped and not owns else Role.ADMIN), is_named=False)


def login_name() -> str:
    """Returns the login name of this account, or its number if it has none. Variables that anyone can set do not count."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def _owns(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.getuid()
    except (FileNotFoundError, NotADirectoryError):
        return True
