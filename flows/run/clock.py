"""Time as the flow reads it, so that a simulation can stand in for hours."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and lets it pass."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    def time_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Lets so much time pass."""
        ...


class SystemClock:
    """The machine's own time."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()

    def time_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return int(time.time() * 1000)

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)
