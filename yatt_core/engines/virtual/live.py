"""A simulated instance that lives on a clock: the cost model of placement under real requests.

Consumes requests as they come; calls back as their sequences end. What the simulator does in no time, this does at the moments
that the scaled clock says; a late timer loses nothing, since work goes on from where the last one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.placement.instance import Doing, Instance, Request, Stream
from yatt_core.placement.seen import Usage
from yatt_core.placement.workload import EngineConstants

Ended = Callable[[Stream], None]


class LiveInstance:
    """One instance, on the running event loop."""

    def __init__(self, index: int, speed: float, clock: ScaledClock) -> None:
        self._instance, self._clock = Instance(index, speed), clock
        self._ended: dict[Stream, Ended] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reached = 0.0

    def serve(self, role: str, constants: EngineConstants) -> None:
        """Takes up a role, empty."""
        self._instance.serve(role, constants)

    def submit(self, request: Request, ended: Ended) -> None:
        """Takes a request in at the next boundary; `ended` is called for each of its sequences."""
        self._catch_up()
        for stream in request.streams:
            self._ended[stream] = ended
        self._instance.admit(request)
        now = max(self._clock.now(), self._reached)
        if self._instance.doing is Doing.IDLE:
            self._instance.begin(now)
        else:
            self._instance.stop_at_boundary(now)
        self._arm()

    def usage(self) -> tuple[Usage, ...]:
        """The work since this was last asked."""
        rows = self._instance.usage
        done, self._instance.usage = rows, [Usage(rows[-1].instance, rows[-1].role)] if rows else []
        return tuple(row for row in done if row.steps or row.prompt_tokens)

    def _arm(self) -> None:
        """Comes back when the work under way is done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._instance.doing is not Doing.IDLE:
            delay = self._clock.real_seconds(max(0.0, self._instance.ends - self._clock.now()))
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._catch_up()
        self._arm()

    def _catch_up(self) -> None:
        """Whatever is done by now."""
        instance = self._instance
        while instance.doing is not Doing.IDLE and instance.ends <= self._clock.now():
            self._reached = instance.ends
            gone = instance.reach_boundary()
            instance.outstanding -= len(gone)
            for stream in gone:
                self._ended.pop(stream)(stream)
            instance.begin(self._reached)
