"""Waits for the next item of several actors' streams, with the deadline and the progress of `ActorCalls`.

Consumes streams with the names of the actors that fill them; produces the stream that is ready. A caller that may
finish with what is there is asked while nothing arrives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray

from yatt_core.cluster.metering import first_ready, unwrap_ray_error
from yatt_core.run_actors.blocked import LOOK_SECONDS as BLOCKED_LOOK_SECONDS
from yatt_core.run_actors.blocked import BlockedControllers
from yatt_core.run_actors.calls import ActorCalls

LOOK_SECONDS = 0.5
"""Between two questions whether to finish with what is there."""


class StreamWait:
    """One wait over several streams.

    what: what does not arrive if the deadline is missed, such as `shard`.
    blocked: ends controllers that an earlier driver keeps occupied; their streams then end with an error.
    is_enough: returns True if the caller needs nothing more; None if it needs everything.
    """

    def __init__(
        self,
        calls: ActorCalls,
        what: str,
        blocked: BlockedControllers,
        is_enough: Callable[[], bool] | None = None,
    ) -> None:
        self._calls = calls
        self._what = what
        self._blocked = blocked
        self._is_enough = is_enough
        self._looked = time.monotonic()
        self._deadline = time.monotonic() + calls.deadline

    def next_ready(self, streams: Mapping[Any, str]) -> Any | None:
        """Returns a stream with an item or at its end; None if the caller needs nothing more. Raises `StuckError`."""
        calls = self._calls
        while True:
            if self._is_enough is not None:
                # What has arrived counts, even if nobody looked until the time was over.
                arrived = first_ready(list(streams), 0.0, calls.interruptions)
                if arrived is not None:
                    self._blocked.heard([streams[arrived]])
                    return arrived
                if self._is_enough():
                    return None
            left = self._deadline - time.monotonic()
            look = left if self._is_enough is None else min(left, LOOK_SECONDS)
            unheard = self._blocked.unheard(list(streams.values()))
            if unheard:
                look = min(look, BLOCKED_LOOK_SECONDS)
            stream = first_ready(list(streams), look, calls.interruptions)
            if stream is not None:
                self._blocked.heard([streams[stream]])
                return stream
            if unheard and time.monotonic() - self._looked >= BLOCKED_LOOK_SECONDS:
                self._looked = time.monotonic()
                self._blocked.look(unheard)
            if time.monotonic() < self._deadline:
                continue
            waiting = list(dict.fromkeys(streams.values()))
            if more := calls.more_time(calls.deadline, waiting, ", ".join(waiting)):
                self._deadline = time.monotonic() + more
                continue
            raise calls.stuck(f"{', '.join(waiting)}: no {self._what} within {calls.deadline:g} s", waiting)


def next_item(calls: ActorCalls, stream: Any, name: str) -> Any | None:
    """Returns the next item of an actor's stream; None after the last."""
    try:
        with calls.interruptions.shielded():
            reference = next(stream)
    except StopIteration:
        return None
    except ray.exceptions.RayError as error:
        calls.notice(error)
        raise unwrap_ray_error(error, name) from error
    return calls.get([reference], name, [name])[0]
