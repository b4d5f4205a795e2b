"""The actors' side of fencing: an actor obeys the highest term it has heard of and refuses every lower one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from yatt_core.errors import FencedError


class TermFence:
    """Holds the highest term seen, by any thread; `check` comes first in every method that has an effect.

    announced: reads the term of the run's driver, where an actor can look it up.
    """

    def __init__(self, term: int, announced: Callable[[], int] | None = None) -> None:
        self._term = term
        self._announced = announced
        self._lock = threading.Lock()

    @property
    def term(self) -> int:
        """The highest term heard of: work that began under an earlier one goes on under it."""
        return self._term

    def check(self, term: int) -> None:
        """Raises `FencedError` for the call of a driver that has been replaced."""
        with self._lock:
            if term < self._term:
                raise FencedError(f"term {term} was replaced by {self._term}")
            self._term = term

    def renew(self) -> bool:
        """Looks the driver's term up; True if it is newer than all that was heard of."""
        if self._announced is None or (announced := self._announced()) <= self._term:
            return False
        with self._lock:
            newer = announced > self._term
            self._term = max(self._term, announced)
        return newer
