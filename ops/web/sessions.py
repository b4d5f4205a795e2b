"""Sessions of browsers that signed in with a token or through a provider; kept only in memory, so that a restart ends them all.

A session of a token is valid only as long as the token, and has the role that the token has now. A session of a provider has
the role that the provider's claims gave at sign-in.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass

from ops.people.roles import Person
from ops.people.tokens import TokenStore, digest_of

SECONDS = 12 * 3600
SESSIONS = 1000
"""Maximum number of sessions; the oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class _Session:
    """An open session.

    token_digest: of the token that it was opened with; None for a session of a provider.
    """

    person: Person
    token_digest: str | None
    ends: float


class Sessions:
    """Opens, checks and ends sessions. Thread-safe."""

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens
        self._lock = threading.Lock()
        self._open: dict[str, _Session] = {}

    def begin(self, token: str) -> tuple[str, Person] | None:
        """Opens a session and returns its cookie's value and the person; None if the token is unknown."""
        person = self._tokens.person_of(token)
        return None if person is None else (self._add(person, digest_of(token)), person)

    def begin_for(self, person: Person) -> str:
        """Opens a session for a person whom a provider has identified, and returns its cookie's value."""
        return self._add(person, None)

    def _add(self, person: Person, token_digest: str | None) -> str:
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._open[digest_of(value)] = _Session(person, token_digest, time.monotonic() + SECONDS)
            while len(self._open) > SESSIONS:
                del self._open[next(iter(self._open))]
        return value

    def person_of(self, value: str) -> Person | None:
        """Returns the person of a cookie's session; None if it has expired, is unknown, or its token is no longer valid."""
        with self._lock:
            session = self._open.get(digest_of(value))
        if session is None or time.monotonic() >= session.ends:
            return None
        return session.person if session.token_digest is None else self._tokens.person_of_digest(session.token_digest)

    def end(self, value: str) -> None:
        """Ends a session; does nothing if it is unknown."""
        with self._lock:
            self._open.pop(digest_of(value), None)
