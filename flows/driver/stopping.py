"""Stop requests: why and by when a session should stop, and which phases may be interrupted for it.

Without a time limit, a session stops after the current iteration. With a limit (set by a preemption notice or `yatt
stop --within`), it stops between two phases or within an interruptible phase, early enough for a last checkpoint.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from flows.run.clock import Clock

INTERRUPTIBLE = frozenset({"place", "collect", "begin_ahead", "prepare"})
"""Phases that can be interrupted: their finished work is on disk, and the trainer holds the weights of a commit."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""The signals of Ctrl-C, of termination by the system, and of Slurm's advance warning (`--signal=USR1@SECONDS`)."""


STOP_REQUESTED = "stop requested"
"""The reason of a stop for which none is given."""


class StopNow(Exception):
    """The session's time is nearly up: the loop must leave the phase, take a last checkpoint, and end."""


class StartInterrupted(KeyboardInterrupt):
    """A signal has asked a window to stop before its training loop heeds requests: nothing is left to finish."""


LOOK_SECONDS = 0.5
"""Between two looks at whether a wait is over."""


class StopRequests:
    """The stop requests of a session.

    asked: True as soon as a stop has been requested.
    reason: the reason given with the first request.
    reserve: seconds set aside for a last checkpoint and the shutdown.
    """

    def __init__(self) -> None:
        self.asked = False
        self.reason = ""
        self.reserve = 5.0
        self._deadline: float | None = None
        self._phase = ""
        self._ended = False
        self._shield = threading.local()

    def ask(self, within: float | None = None, reason: str = STOP_REQUESTED) -> None:
        """Requests a stop; the first reason is kept.

        within: seconds that are left; a shorter limit replaces a longer one.
        """
        self.asked = True
        self.reason = self.reason or reason
        if within is not None:
            deadline = time.monotonic() + max(0.0, within - self.reserve)
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def end(self) -> None:
        """Ends the session at once by raising `KeyboardInterrupt`; inside `shielded`, the exception is deferred."""
        self._ended = True
        if not getattr(self._shield, "up", False):
            self.interrupt()

    @property
    def overdue(self) -> bool:
        """True once the time limit has passed."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Marks a phase as current; within it, an overdue stop raises `StopNow` if the phase is interruptible."""
        self._phase = name
        try:
            self.interrupt()
            yield
        finally:
            self._phase = ""

    def interrupt(self) -> None:
        """Raises `KeyboardInterrupt` after `end`, or `StopNow` if a stop is overdue and the phase is interruptible."""
        if self._ended:
            self._ended = False
            raise KeyboardInterrupt
        if self.overdue and self._phase in INTERRUPTIBLE:
            raise StopNow

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Keeps `end` from raising in this thread, for calls that must not be interrupted by a signal handler."""
        self._shield.up = True
        try:
            yield
        finally:
            self._shield.up = False


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Makes SIGTERM act like Ctrl-C until `graceful_signals` takes over, unless a handler is already installed."""
    default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if default:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if default:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def start_ended_in_order() -> Iterator[None]:
    """Makes signals interrupt the start of a window, until `graceful_signals` takes over.

    A handler that is installed already is replaced: Prefect's would end the flow run as crashed.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        raise StartInterrupted

    previous = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def graceful_signals(requests: StopRequests, grace: float | None, say: Callable[[str], None]) -> Iterator[None]:
    """Handles signals: the first requests a stop within `grace` seconds, the second ends the session at once."""
    signalled = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        if signalled:
            requests.end()
        else:
            signalled = True
            requests.ask(grace)
            say("stopping; send the signal again to end at once")

    previous = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def wait_unless_stopped(
    stops: StopRequests, clock: Clock, seconds: float, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Waits; a request to stop ends the wait, and so does `is_over`, which is asked before each look at the time."""
    until = clock.monotonic() + seconds
    while not stops.asked and (left := until - clock.monotonic()) > 0:
        if is_over():
            return
        clock.sleep(min(LOOK_SECONDS, left))
