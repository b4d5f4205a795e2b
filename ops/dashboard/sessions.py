"""Sessions of browsers that signed in with a token: in memory alone, so that a restart ends them all.

A session is worth as much as the token that it was opened with: a revoked one ends it.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass

from ops.dashboard.tokens import TokenStore, digest_of

SECONDS = 12 * 3600
SESSIONS = 1000
"""Kept at a time; the oldest go first."""


@dataclass(frozen=True, slots=True)
class _Session:
    name: str
    token_digest: str
    ends: float


class Sessions:
    """Opens, checks and ends sessions. Threads may share it."""

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens
        self._lock = threading.Lock()
        self._open: dict[str, _Session] = {}

    def begin(self, token: str) -> tuple[str, str] | None:
        """Opens a session: the value of its cookie, and whose it is; none for a token that is unknown."""
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
        """Whose session a cookie names; none for one that is over, unknown, or whose token was revoked."""
        with self._lock:
            session = self._open.get(digest_of(value))
        if session is None or time.monotonic() >= session.ends:
            return None
        return session.name if self._tokens.digest_named(session.name) == session.token_digest else None

    def end(self, value: str) -> None:
        """Ends a session; nothing for one that there is not."""
        with self._lock:
            self._open.pop(digest_of(value), None)
