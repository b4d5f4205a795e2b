"""The actors' side of fencing: an actor obeys the highest epoch it has heard of and refuses every lower one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from yatt_core.errors import FencedError


class EpochFence:
    """Holds the highest epoch seen, by any thread; `check` comes first in every method that has an effect.

    announced: reads the epoch of the run's driver, where an actor can look it up.
    """

    def __init__(self, epoch: int, announced: Callable[[], int] | None = None) -> None:
        self._epoch = epoch
        self._announced = announced
        self._lock = threading.Lock()

    @property
    def epoch(self) -> int:
        """The highest epoch heard of: work that began under an earlier one goes on under it."""
        return self._epoch

    def check(self, epoch: int) -> None:
        """Raises `FencedError` for the call of a driver that has been replaced."""
        with self._lock:
            if epoch < self._epoch:
                raise FencedError(f"epoch {epoch} was replaced by {self._epoch}")
            self._epoch = epoch

    def renew(self) -> bool:
        """Looks the driver's epoch up; True if it is newer than all that was heard of."""
        if self._announced is None or (announced := self._announced()) <= self._epoch:
            return False
        with self._lock:
            newer = announced > self._epoch
            self._epoch = max(self._epoch, announced)
        return newer
