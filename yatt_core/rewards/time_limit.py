"""Calls a function under a time limit that interrupts Python code, whatever it waits for.

The limit is a SIGALRM, which Python delivers to the main thread between two of its own instructions: it ends loops, sleeps
and reads, and waits for a call into C that does not look for signals.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, TypeVar

from yatt_core.errors import InfrastructureError

Result = TypeVar("Result")

REPEAT_SECONDS = 1.0
"""The alarm comes again after this, in case the code swallowed the first one."""


class TimeLimitReached(BaseException):
    """The call took too long. No `Exception`, so that a handler inside the call does not take it for one of its own."""


def call_within(seconds: float, function: Callable[[], Result]) -> Result:
    """The function's result. Raises `TimeLimitReached`, and `InfrastructureError` off the main thread, where no limit holds.

    A timer and handler that were set before are put back, the timer less the time that went by.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InfrastructureError(
            "reward functions run in their process's main thread only: elsewhere no time limit holds"
        )
    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, _interrupt)
    remaining, interval = 0.0, 0.0
    try:
        remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)
        try:
            return function()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - started), 1e-3), interval)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise TimeLimitReached
