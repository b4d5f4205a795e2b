"""Calls a function under a time limit that interrupts Python code even while it blocks.

The limit is a SIGALRM, which Python handles in the main thread between two bytecode instructions. It ends
loops, sleeps and reads, but waits for C calls that do not check for signals.
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
"""Interval at which the alarm repeats, in case the code has swallowed the first one."""


class TimeLimitReached(BaseException):
    """The call took too long. Not an `Exception`, so that handlers inside the call do not catch it."""


def call_within(seconds: float, function: Callable[[], Result]) -> Result:
    """Returns the function's result. Raises `TimeLimitReached` if the call takes too long, even if it then returns.

    Raises `InfrastructureError` outside the main thread, where no limit can be enforced. Afterwards, the previous
    signal handler is restored, and the previous timer with its remaining time.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InfrastructureError(
            "reward functions run only in the main thread of their process; elsewhere their time limit cannot be "
            "enforced"
        )
    started = time.monotonic()
    fired = list[bool]()

    def interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
        fired.append(True)
        raise TimeLimitReached

    handler = signal.signal(signal.SIGALRM, interrupt)
    remaining = 0.0
    interval = 0.0
    try:
        remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)
        try:
            result = function()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        if fired:  # the call has swallowed the interrupt
            raise TimeLimitReached
        return result
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - started), 1e-3), interval)
