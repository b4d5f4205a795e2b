"""Waits, with a time limit, for another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Returns once the condition holds; fails the test if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def holds_in_time(
    condition: Callable[[], bool], seconds: float, meanwhile: Callable[[], None], pause_seconds: float
) -> bool:
    """Returns True once the condition holds, and False if it does not within `seconds`.

    meanwhile: called before each pause, to tend what is waited for.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        meanwhile()
        time.sleep(pause_seconds)
    return True
