"""One engine, several threads that wait for it: whoever waits takes the next step for all of them.

So nothing runs while nobody waits, no thread has to be ended, and what must not happen during a step, such as an update of the
weights, happens between two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager


class EngineLock:
    """Who may touch the engine: one thread at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = self._paused = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The engine is this thread's, between two steps."""
        with self._changed:
            while self._taken:
                self._changed.wait()
            self._taken = True
        try:
            yield
        finally:
            self._leave()

    def pause(self) -> None:
        """From here on nobody takes a step."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """Steps are taken again."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def wait_for(self, arrived: Sized, step: Callable[[], None]) -> None:
        """Comes back when something has arrived, or behind a step that this thread took. Raises what the step raises."""
        with self._changed:
            while (self._taken or self._paused) and not len(arrived):
                self._changed.wait()
            if len(arrived):
                return
            self._taken = True
        try:
            step()
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()
