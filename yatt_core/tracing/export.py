"""A bounded queue before an exporter: whoever adds to it never waits and never fails.

Consumes spans or log records; a thread of its own sends them in batches. What does not fit into the queue, or could not
be sent, is counted as dropped.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
CAPACITY = 4096
BATCH = 512
INTERVAL_SECONDS = 1.0
log = logging.getLogger("yatt_core.tracing")


class BoundedExport(Generic[Item]):
    """Sends items in a daemon thread.

    send: sends a batch and returns True if it was accepted; it may take seconds.
    what: what the items are, for the log.
    dropped: number of items that were not sent.
    """

    def __init__(self, what: str, send: Callable[[Sequence[Item]], bool], capacity: int = CAPACITY) -> None:
        self._what = what
        self._send = send
        self._capacity = capacity
        self._items: deque[Item] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ending = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"otlp-{what}", daemon=True)
        self._thread.start()

    def add(self, item: Item) -> None:
        """Queues an item, or drops it if the queue is full."""
        with self._lock:
            if self._ending or len(self._items) >= self._capacity:
                self.dropped += 1
                return
            self._items.append(item)
            full = len(self._items) >= BATCH
        if full:
            self._wake.set()

    def end(self, seconds: float) -> int:
        """Sends the rest, for at most so many seconds; returns the number of items that were never sent."""
        with self._lock:
            self._ending = True
        self._wake.set()
        self._thread.join(seconds)
        with self._lock:
            self.dropped += len(self._items)
            self._items.clear()
        if self.dropped:
            log.warning("%d %s were not sent by OTLP", self.dropped, self._what)
        return self.dropped

    def _run(self) -> None:
        while True:
            self._wake.wait(INTERVAL_SECONDS)
            self._wake.clear()
            while batch := self._take():
                if not self._sent(batch):
                    with self._lock:
                        self.dropped += len(batch)
                    if self._ending:
                        return  # the address does not answer: nothing is tried again at the end
                    break
            if self._ending and not self._items:
                return

    def _take(self) -> list[Item]:
        with self._lock:
            return [self._items.popleft() for _ in range(min(BATCH, len(self._items)))]

    def _sent(self, batch: Sequence[Item]) -> bool:
        try:
            return self._send(batch)
        except (OSError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            log.debug("sending %s failed: %s", self._what, error)
            return False
