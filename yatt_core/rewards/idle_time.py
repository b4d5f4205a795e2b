"""Measures how long an event loop has nothing to do, to tell a call that waits from one that others keep from running.

Consumes the loop's waits. Produces their total length.
"""

from __future__ import annotations

import selectors
import time
from typing import Any


class IdleTime(selectors.DefaultSelector):
    """A selector for an event loop.

    seconds: total time for which the loop has waited.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        """Waits as its base class does."""
        began = time.monotonic()
        try:
            return super().select(timeout)
        finally:
            self.seconds += time.monotonic() - began
