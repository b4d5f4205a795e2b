"""The events in which Prefect's client reports task runs: sent together every second, and waited for only so long at the end.

A phase of a small run takes less than a second, and each event has a cost of its own, here and in the server's process. So
events are held for up to a second; a task run that has ended meanwhile is reported in its final state, with the time at which
it began, and never as running.

While the server is away, the client queues events and tries each one for several seconds. At its end the process waits
until the queue is empty, which after an outage could take hours. A session therefore discards what is still queued some
seconds after its end: Prefect's display then lacks task runs, and nothing else refers to them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial

from prefect.events import Event
from prefect.events.worker import EventsWorker

log = logging.getLogger("yatt_core.flow")
HOLD_SECONDS = 1.0
END_SECONDS = 10.0
SEND = "send"
"""The method with which the client takes an event to send."""
HANDLER = "_handle"
"""The method with which the client's thread sends an event; Prefect ignores events if its client has another class."""
RUNNING = "prefect.task-run.Running"


async def _ignore(event: Event) -> None:
    """Takes an event from the queue without sending it."""


@dataclass(frozen=True, slots=True)
class _Held:
    """An event. send: gives it to Prefect's client. context: in which it was made, which tells its flow run."""

    event: Event
    send: Callable[[Event], None]
    context: Context


class HeldEvents:
    """Events that are held for `HOLD_SECONDS`, or until `flush`; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[_Held] = []

    def take(self, send: Callable[[Event], None], event: Event) -> None:
        """Has an event sent soon, after those before it."""
        with self._lock:
            self._held.append(_Held(event, send, copy_context()))
            is_first = len(self._held) == 1
        if is_first:
            timer = threading.Timer(HOLD_SECONDS, self.flush)
            timer.daemon = True
            timer.start()

    def flush(self) -> None:
        """Sends what is held."""
        with self._lock:
            held = self._held
            self._held = []
        news = {event.id: event for event in without_outdated([each.event for each in held])}
        for each in held:
            if each.event.id in news:
                try:
                    each.context.run(each.send, news[each.event.id])
                except RuntimeError as error:  # Prefect's client ends, with the process
                    log.warning("an event was not sent to Prefect: %s", error)


def without_outdated(events: Sequence[Event]) -> list[Event]:
    """Returns events without those that say that a task run is running which a later one says has ended."""
    last = {event.resource.id: event.id for event in events}
    outdated = {event.id for event in events if event.event == RUNNING and last[event.resource.id] != event.id}
    return [
        # What follows an event that never comes would be held back by the server for a while.
        event.model_copy(update={"follows": None}) if event.follows in outdated else event
        for event in events
        if event.id not in outdated
    ]


class SentEvents:
    """Sends the events of a session, at the latest `END_SECONDS` after its end, and discards the rest."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None
        self._held = HeldEvents()

    def begin(self) -> None:
        """Sends events from now on, even if an earlier session of this process discarded its own."""
        if self._timer is not None:
            self._timer.cancel()
            vars(EventsWorker.instance()).pop(HANDLER, None)
        send = EventsWorker.send
        held = self._held

        def take(worker: EventsWorker, event: Event) -> None:
            held.take(partial(send, worker), event)

        setattr(EventsWorker, SEND, take)

    def end(self) -> None:
        """Sends what is held, and sets the time limit, in which the process may already come to its end."""
        delattr(EventsWorker, SEND)
        self._held.flush()
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
