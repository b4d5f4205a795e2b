"""A clock that runs faster than real time; virtual engines count their seconds on it."""

from __future__ import annotations

import time
from collections.abc import Callable


class ScaledClock:
    """A scaled clock.

    factor: virtual seconds per real second.
    sleep: waits for a number of real seconds.
    """

    def __init__(self, factor: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self._factor = factor
        self._sleep = sleep

    def now(self) -> float:
        """Returns virtual seconds since an arbitrary moment."""
        return time.monotonic() * self._factor

    def real_seconds(self, seconds: float) -> float:
        """Converts virtual to real seconds."""
        return seconds / self._factor

    def spend(self, seconds: float) -> None:
        """Waits for a number of virtual seconds; for zero it does not even yield control."""
        if seconds > 0:
            self._sleep(self.real_seconds(seconds))
