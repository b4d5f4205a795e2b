"""The flow's clock, which a simulation can replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Returns seconds since an arbitrary point; never goes backwards."""
        ...

    def time_ms(self) -> int:
        """Returns milliseconds since 1970, UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits for `seconds`."""
        ...


class SystemClock:
    """The system clock."""

    def monotonic(self) -> float:
        """Returns seconds since an arbitrary point; never goes backwards."""
        return time.monotonic()

    def time_ms(self) -> int:
        """Returns milliseconds since 1970, UTC."""
        return int(time.time() * 1000)

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)
