"""Users: names with a role, and the login names under which they use the command line on this machine.

Consumes and produces `users.json` in the home folder. It contains no secrets, so that every account that shares the home
can look up its own role; it is refused if other accounts can write to it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ops.people.roles import Role
from ops.people.stored import StoredRows
from yatt_core.errors import ConfigurationError

FILE = "users.json"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
LOGIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\-]{0,63}\$?")


@dataclass(frozen=True, slots=True)
class User:
    """A user as stored.

    logins: the login names of the operating system that belong to this user.
    created_at: milliseconds since 1970.
    is_author: whether the permission to author was granted.
    """

    name: str
    role: Role
    created_at: int
    logins: tuple[str, ...] = ()
    is_author: bool = False


class UserStore:
    """The users of a home folder. Safe to use from several processes.

    clock: returns seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._stored = StoredRows(
            path=folder / FILE, key="users", mode=0o644, forbidden=0o022, danger="lets other users change it"
        )

    @property
    def path(self) -> Path:
        """The file."""
        return self._stored.path

    def all(self) -> tuple[User, ...]:
        """Returns the users in order of creation. Raises what `StoredRows.read` raises."""
        try:
            return tuple(
                User(
                    name=row["name"],
                    role=Role(row["role"]),
                    created_at=int(row["created_at"]),
                    logins=tuple(row["logins"]),
                    is_author=row.get("is_author") is True,
                )
                for row in self._stored.read()
            )
        except (ValueError, KeyError, TypeError) as error:
            raise self._stored.wrong(error) from None

    def find(self, name: str) -> User | None:
        """Returns a user; None if there is none of this name."""
        return next((user for user in self.all() if user.name == name), None)

    def add(self, name: str, role: Role, logins: Sequence[str] = ()) -> None:
        """Adds a user. Raises `ConfigurationError` if the name or a login name is invalid or taken."""
        check_name("user name", name)
        for login in logins:
            if not LOGIN.fullmatch(login):
                raise ConfigurationError(f"login name {login!r:.80}: expected the name of an account of this system")
        with self._stored.changing() as rows:
            for row in rows:
                if row["name"] == name:
                    raise ConfigurationError(
                        f"a user named {name} already exists; `yatt user role {name} ROLE` changes the role"
                    )
                for login in sorted({*row["logins"]} & {*logins}):
                    raise ConfigurationError(f"login name {login}: belongs to the user {row['name']} already")
            user = User(name, role, round(self._clock() * 1000), tuple(dict.fromkeys(logins)))
            rows.append(asdict(user))

    def set_role(self, name: str, role: Role) -> None:
        """Changes a user's role, which takes effect at once. Raises `ConfigurationError` if the name is unknown."""
        self._replace(name, lambda user: replace(user, role=role))

    def set_author(self, name: str, is_author: bool) -> None:
        """Grants or withdraws the permission to author, at once. Raises `ConfigurationError` if the name is unknown."""
        self._replace(name, lambda user: replace(user, is_author=is_author))

    def remove(self, name: str) -> None:
        """Removes a user. Raises `ConfigurationError` if the name is unknown."""
        self._replace(name, lambda user: None)

    def require(self, name: str) -> tuple[User, ...]:
        """Returns all users. Raises `ConfigurationError` if none of them has the name."""
        users = self.all()
        if all(user.name != name for user in users):
            names = ", ".join(user.name for user in users) or "none"
            raise ConfigurationError(f"there is no user named {name!r:.80}; existing users: {names}")
        return users

    def _replace(self, name: str, change: Callable[[User], User | None]) -> None:
        with self._stored.changing() as rows:
            users = self.require(name)
            changed = [change(user) if user.name == name else user for user in users]
            rows[:] = [asdict(user) for user in changed if user is not None]


def check_name(what: str, name: str) -> None:
    """Raises `ConfigurationError` if a name is not a plain word.

    what: what it names, for the error message.
    """
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name!r:.80}: expected lower-case letters, digits, '.', '_' and '-', such as alice or ci-2"
        )
