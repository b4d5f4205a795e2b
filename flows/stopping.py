"""Requests to stop: who asked, by when, and where the driver may be interrupted for it.

Without a limit a segment ends behind its iteration. With one (a preemption notice, `yatt stop --within`) it ends between two
phases, or in the middle of one that can be left and taken up again, so that a last snapshot still fits.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTIBLE = frozenset({"place", "collect", "prepare"})
"""Phases that can be left in the middle: what they have finished is on disk, and the trainer's weights are a commit's."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C; an end by the surroundings; what Slurm's `--signal=USR1@SECONDS` sends ahead of one."""


class StopNow(Exception):
    """The segment's time is nearly up: leave the phase, take a last snapshot, and end."""


class StopRequests:
    """Whether the segment is to stop, and until when. reserve: seconds that a last snapshot and the end will take."""

    def __init__(self) -> None:
        self.asked = False
        self.reserve = 5.0
        self._deadline: float | None = None
        self._phase = ""

    def ask(self, within: float | None = None) -> None:
        """Asks for a stop. within: seconds that are left; a shorter limit replaces a longer one."""
        self.asked = True
        if within is not None:
            deadline = time.monotonic() + max(0.0, within - self.reserve)
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

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
        """Raises `StopNow` if the stop is overdue and the phase at hand can be left."""
        if self.overdue and self._phase in INTERRUPTIBLE:
            raise StopNow


@contextmanager
def graceful_signals(requests: StopRequests, grace: float | None, say: Callable[[str], None]) -> Iterator[None]:
    """The first signal asks for a stop within `grace` seconds, the second ends at once; a timer interrupts when it is overdue."""
    signalled = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        if signalled:
            raise KeyboardInterrupt
        signalled = True
        requests.ask(grace)
        say("stopping; once more to end at once")

    def look(number: int, frame: FrameType | None) -> None:
        requests.interrupt()

    handlers = {**dict.fromkeys(SIGNALS, handle), signal.SIGALRM: look}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in previous.items():
            signal.signal(number, handler)
