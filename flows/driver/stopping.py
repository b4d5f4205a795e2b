"""Requests to stop: who asked, by when, and where the driver may be interrupted for it.

Without a limit a session ends behind its iteration. With one (a preemption notice, `yatt stop --within`) it ends between two
phases, or in the middle of one that can be left and taken up again, so that a last checkpoint still fits.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTIBLE = frozenset({"place", "collect", "prepare"})
"""Phases that can be left in the middle: what they have finished is on disk, and the trainer's weights are a commit's."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C; an end by the surroundings; what Slurm's `--signal=USR1@SECONDS` sends ahead of one."""


class StopNow(Exception):
    """The session's time is nearly up: leave the phase, take a last checkpoint, and end."""


class StopRequests:
    """Whether and why the session is to stop, and until when. reserve: seconds that a last checkpoint and the end will take."""

    def __init__(self) -> None:
        self.asked = False
        self.reason = ""
        self.reserve = 5.0
        self._deadline: float | None = None
        self._phase = ""
        self._ended = False
        self._shield = threading.local()

    def ask(self, within: float | None = None, reason: str = "stop requested") -> None:
        """Asks for a stop. within: seconds that are left; a shorter limit replaces a longer one. The first reason stands."""
        self.asked, self.reason = True, self.reason or reason
        if within is not None:
            deadline = time.monotonic() + max(0.0, within - self.reserve)
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def end(self) -> None:
        """Ends the session at once: raises `KeyboardInterrupt`, behind the shield if there is one."""
        self._ended = True
        if not getattr(self._shield, "up", False):
            self.interrupt()

    @property
    def overdue(self) -> bool:
        """True once the time that is left has gone."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Inside, an overdue stop raises `StopNow` where the phase can be left."""
        self._phase = name
        try:
            self.interrupt()
            yield
        finally:
            self._phase = ""

    def interrupt(self) -> None:
        """Raises `KeyboardInterrupt` behind `end`, `StopNow` if the stop is overdue and the phase at hand can be left."""
        if self._ended:
            self._ended = False
            raise KeyboardInterrupt
        if self.overdue and self._phase in INTERRUPTIBLE:
            raise StopNow

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Inside, and in this thread, `end` raises nothing: for calls that bear no exception of a signal's handler."""
        self._shield.up = True
        try:
            yield
        finally:
            self._shield.up = False


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Before `graceful_signals`: SIGTERM ends the process as Ctrl-C does, unless there is a handler for it already."""
    default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if default:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if default:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def graceful_signals(requests: StopRequests, grace: float | None, say: Callable[[str], None]) -> Iterator[None]:
    """The first signal asks for a stop within `grace` seconds, the second ends at once."""
    signalled = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        if signalled:
            requests.end()
        else:
            signalled = True
            requests.ask(grace)
            say("stopping; once more to end at once")

    previous = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
