"""A lock for one engine shared by several threads: any waiting thread takes the next step for all of them.

Thus nothing runs while no thread waits, no background thread has to be stopped, and operations that must not
overlap a step, such as an update of the weights, run between two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager


class EngineLock:
    """Controls access to the engine: one thread at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = self._paused = False
        self._asking = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Gives this thread exclusive use of the engine, after the step in progress if there is one.

        No other step begins before: a thread that takes one step after another would always be there first.
        """
        with self._changed:
            self._asking += 1
            try:
                while self._taken:
                    self._changed.wait()
            finally:
                self._asking -= 1
            self._taken = True
        try:
            yield
        finally:
            self._leave()

    def pause(self) -> None:
        """Stops all steps from here on."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """Allows steps again."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def wait_for(self, arrived: Sized, step: Callable[[], None]) -> None:
        """Returns when something has arrived, or after a step taken by this thread. Raises what the step raises."""
        with self._changed:
            while (self._taken or self._paused or self._asking) and not len(arrived):
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
