"""Sessions of browsers that signed in with a token; kept only in memory, so that a restart ends them all.

A session is valid only as long as the token that it was opened with; revoking the token ends the session.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass

from ops.dashboard.tokens import TokenStore, digest_of

SECONDS = 12 * 3600
SESSIONS = 1000
"""Maximum number of sessions; the oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class _Session:
    name: str
    token_digest: str
    ends: float


class Sessions:
    """Opens, checks and ends sessions. Thread-safe."""

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens
        self._lock = threading.Lock()
        self._open: dict[str, _Session] = {}

    def begin(self, token: str) -> tuple[str, str] | None:
        """Opens a session and returns its cookie's value and the user's name; None if the token is unknown."""
        name = self._tokens.name_of(token)
        if name is None:
            return None
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._open[digest_of(value)] = _Session(name, digest_of(token), time.monotonic() + SECONDS)
            while len(self._open) > SESSIONS:
                del self._open[next(iter(self._open))]
        return value, name

    def name_of(self, value: str) -> str | None:
        """Returns the user of a cookie's session; None if it has expired, is unknown, or its token was revoked."""
        with self._lock:
            session = self._open.get(digest_of(value))
        if session is None or time.monotonic() >= session.ends:
            return None
        return session.name if self._tokens.digest_named(session.name) == session.token_digest else None

    def end(self, value: str) -> None:
        """Ends a session; does nothing if it is unknown."""
        with self._lock:
            self._open.pop(digest_of(value), None)
