"""The actors' side of fencing: an actor obeys the highest term it has seen and rejects all lower ones."""

from __future__ import annotations

import threading
from collections.abc import Callable

from yatt_core.errors import FencedError


class TermFence:
    """Holds the highest term seen, for any thread; every method with an effect calls `check` first.

    announced: returns the term of the run's driver, if the actor can look it up.
    """

    def __init__(self, term: int, announced: Callable[[], int] | None = None) -> None:
        self._term = term
        self._announced = announced
        self._lock = threading.Lock()

    @property
    def term(self) -> int:
        """The highest term seen; work that began under an earlier term continues under it."""
        return self._term

    def check(self, term: int) -> None:
        """Raises `FencedError` for a call from a driver that has been replaced."""
        with self._lock:
            if term < self._term:
                raise FencedError(f"term {term} was replaced by {self._term}")
            self._term = term

    def renew(self) -> bool:
        """Looks up the driver's term; returns True if it is newer than all terms seen before."""
        if self._announced is None or (announced := self._announced()) <= self._term:
            return False
        with self._lock:
            newer = announced > self._term
            self._term = max(self._term, announced)
        return newer
