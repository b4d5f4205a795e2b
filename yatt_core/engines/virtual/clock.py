"""A clock that runs faster than the wall's: virtual engines spend seconds on it."""

from __future__ import annotations

import time
from collections.abc import Callable


class ScaledClock:
    """factor: virtual seconds in a real one. sleep: what waits for real seconds."""

    def __init__(self, factor: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self._factor = factor
        self._sleep = sleep

    def now(self) -> float:
        """Virtual seconds since some moment."""
        return time.monotonic() * self._factor

    def real_seconds(self, seconds: float) -> float:
        """How long so many virtual seconds take."""
        return seconds / self._factor

    def spend(self, seconds: float) -> None:
        """Lets so many virtual seconds pass; for none it does not even yield."""
        if seconds > 0:
            self._sleep(self.real_seconds(seconds))
