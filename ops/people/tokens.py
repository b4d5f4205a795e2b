"""Named tokens: what a person or program sends to act over HTTP, or gives the command line as `YATT_TOKEN`.

Consumes and produces `tokens.json` in the home folder, mode 0600, which contains only digests; a token itself is shown once,
when it is created. The file is read for every check, which is cheap, so that a revoked token is refused immediately.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.people.roles import Person, Role, lesser
from ops.people.stored import StoredRows
from ops.people.users import UserStore, check_name
from yatt_core.errors import ConfigurationError

FILE = "tokens.json"
PREFIX = "yatt_"
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token as stored.

    digest: sha256 of the token.
    created_at: milliseconds since 1970.
    role: what its holder may do; a token without one is from a release that had no roles, and may do everything.
    expires_at: milliseconds since 1970; None: never.
    user: the user for whom it acts; empty: it acts under its own name.
    """

    name: str
    digest: str
    created_at: int
    role: Role = Role.ADMIN
    expires_at: int | None = None
    user: str = ""

    @property
    def holder(self) -> str:
        """The name under which it acts."""
        return self.user or self.name


class TokenStore:
    """The tokens of a home folder. Safe to use from several processes.

    clock: returns seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.users = UserStore(folder)
        self._stored = StoredRows(
            path=folder / FILE, key="tokens", mode=0o600, forbidden=0o077, danger="gives other users access"
        )

    def create(
        self, name: str, role: Role = Role.OPERATOR, lifetime_seconds: float | None = None, user: str = ""
    ) -> str:
        """Creates a token and returns it.

        user: the user for whom it acts, whose role limits the token's.

        Raises `ConfigurationError` if the name is invalid or taken, or the user is unknown.
        """
        check_name("token name", name)
        if user and self.users.find(user) is None:
            raise ConfigurationError(f"there is no user named {user!r:.80}; add one with `yatt user add`")
        token = PREFIX + secrets.token_urlsafe(32)
        now = self._clock()
        expires_at = None if lifetime_seconds is None else round((now + lifetime_seconds) * 1000)
        with self._stored.changing() as rows:
            if any(row["name"] == name for row in rows):
                raise ConfigurationError(
                    f"a token named {name} already exists; revoke it first, or choose another name"
                )
            rows.append(
                asdict(
                    NamedToken(
                        name=name,
                        digest=digest_of(token),
                        created_at=round(now * 1000),
                        role=role,
                        expires_at=expires_at,
                        user=user,
                    )
                )
            )
        return token

    def revoke(self, name: str) -> None:
        """Revokes a token, which also ends its sessions. Raises `ConfigurationError` if the name is unknown."""
        with self._stored.changing() as rows:
            left = [row for row in rows if row["name"] != name]
            if len(left) == len(rows):
                names = ", ".join(row["name"] for row in rows) or "none"
                raise ConfigurationError(f"there is no token named {name!r:.80}; existing tokens: {names}")
            rows[:] = left

    def revoke_all_of(self, holder: str) -> tuple[str, ...]:
        """Revokes every token that acts under a name; returns the tokens' names."""
        found = tuple(token.name for token in self.all() if token.holder == holder)
        for name in found:
            self.revoke(name)
        return found

    def all(self) -> tuple[NamedToken, ...]:
        """Returns the tokens in order of creation. Raises what `StoredRows.read` raises."""
        try:
            return tuple(NamedToken(**row | {"role": Role(row.get("role", Role.ADMIN))}) for row in self._stored.read())
        except (ValueError, TypeError) as error:
            raise self._stored.wrong(error) from None

    def find(self, token: str) -> NamedToken | None:
        """Returns what is stored of a token; None if it is unknown, revoked or expired.

        Compares all digests, each in constant time.
        """
        digest = digest_of(token)
        found = None
        for known in (NamedToken("", _NOBODY, 0), *self.all()):
            if hmac.compare_digest(digest, known.digest):
                found = known
        return found if found is not None and found.name and self._is_valid(found) else None

    def person_of(self, token: str) -> Person | None:
        """Returns who acts with a token; None if it is unknown, revoked or expired."""
        known = self.find(token)
        return None if known is None else self.holder_of(known)

    def person_of_digest(self, digest: str) -> Person | None:
        """Returns who acts with the token that has this digest; None as `person_of`."""
        known = next((known for known in self.all() if known.digest == digest), None)
        return self.holder_of(known) if known is not None and self._is_valid(known) else None

    def _is_valid(self, token: NamedToken) -> bool:
        return token.expires_at is None or self._clock() * 1000 < token.expires_at

    def holder_of(self, token: NamedToken) -> Person | None:
        """Returns who acts with a token; the role as a user limits that of the token. None if the user was removed."""
        user = self.users.find(token.holder)
        if user is None:
            return None if token.user else Person(token.name, token.role)
        return Person(user.name, lesser(user.role, token.role), user.is_author)


def digest_of(token: str) -> str:
    """Returns the stored digest of a token. A token has 256 random bits, so a plain hash cannot be brute-forced."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
