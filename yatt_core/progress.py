"""Marks progress within a long call, so that a deadline limits how long an actor is stuck, not how long it works.

Engines call `advanced` after each step or micro-batch; the actor's presence thread reports when the last one was.
"""

from __future__ import annotations

import time

_latest: float | None = None


def advanced() -> None:
    """Records that this process has just finished a piece of its work."""
    global _latest
    _latest = time.monotonic()


def seconds_since_progress() -> float | None:
    """Returns the time since this process last finished a piece of work; None if it never has."""
    return None if _latest is None else time.monotonic() - _latest
