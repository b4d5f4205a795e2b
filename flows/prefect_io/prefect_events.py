"""The events in which Prefect's client reports task runs; bounds how long the end of a driver waits for them.

While the server is away, the client queues events and tries each one for several seconds. At its end the process waits
until the queue is empty, which after an outage could take hours. A session therefore discards what is still queued some
seconds after its end: Prefect's display then lacks task runs, and nothing else refers to them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.events import Event
from prefect.events.worker import EventsWorker

END_SECONDS = 10.0
HANDLER = "_handle"
"""The method with which the client's thread sends an event; Prefect ignores events if its client has another class."""


async def _ignore(event: Event) -> None:
    """Takes an event from the queue without sending it."""


class SentEvents:
    """Sends the events of a session, at the latest `END_SECONDS` after its end, and discards the rest."""

    _timer: threading.Timer | None = None

    def begin(self) -> None:
        """Sends events from now on, even if an earlier session of this process discarded its own."""
        if self._timer is not None:
            self._timer.cancel()
            vars(EventsWorker.instance()).pop(HANDLER, None)

    def end(self) -> None:
        """Sets the time limit, in which the process may already come to its end."""
        self._timer = threading.Timer(END_SECONDS, setattr, (EventsWorker.instance(), HANDLER, _ignore))
        self._timer.daemon = True
        self._timer.start()


_sent = SentEvents()


@contextmanager
def sent_events() -> Iterator[None]:
    """Sends the events of the body, with a time limit that begins after it."""
    _sent.begin()
    try:
        yield
    finally:
        _sent.end()
