"""Marks progress within a long call, so that a deadline limits how long an actor is stuck, not how long it works.

Whoever works calls `advanced` after each piece: engines after a step or micro-batch, readers after some thousand
rows. The actor's presence thread reports when the last one was, and what is known about it.
"""

from __future__ import annotations

import logging
import time

_latest: float | None = None
_words = ""


def advanced(words: str = "") -> None:
    """Records that this process has just finished a piece of its work.

    words: how far it has come, for people.
    """
    global _latest, _words
    _latest = time.monotonic()
    _words = words


def log_progress(log: logging.Logger, words: str) -> None:
    """Records a finished piece of work and how far it has come, for people and in the log."""
    log.info("%s", words)
    advanced(words)


def latest_words() -> str:
    """Returns how far this process has come with its work; empty if it did not say."""
    return _words


def seconds_since_progress() -> float | None:
    """Returns the time since this process last finished a piece of work; None if it never has."""
    return None if _latest is None else time.monotonic() - _latest
