"""A simulated instance driven by a clock: the placement cost model under real requests.

Consumes requests as they arrive; calls back when their sequences end or are evicted. What the simulator does
instantly happens here at the times given by the scaled clock. A late timer loses nothing, since work
continues from where the last step ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.placement.seen import Usage
from yatt_core.placement.simulation.instance import Doing, Instance, Request, SimulatedSequence
from yatt_core.placement.workload import EngineConstants

Left = Callable[[SimulatedSequence], None]
"""Called with a sequence that has left the instance; a sequence that has not ended has tokens left."""


class LiveInstance:
    """One instance, on the running event loop."""

    def __init__(self, index: int, speed: float, clock: ScaledClock) -> None:
        self._instance = Instance(index, speed)
        self._clock = clock
        self._leaves: dict[SimulatedSequence, Left] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reached = 0.0

    def serve(self, role: str, constants: EngineConstants) -> None:
        """Takes up a role, without any requests."""
        self._instance.serve(role, constants)

    def submit(self, request: Request, left: Left) -> None:
        """Admits a request at the next boundary; `left` is called for each of its sequences."""
        self._catch_up()
        for stream in request.streams:
            self._leaves[stream] = left
        self._instance.admit(request)
        self._disturb()

    def evict(self, count: int) -> None:
        """Evicts the newest `count` sequences at the next boundary; their `left` is called."""
        self._catch_up()
        self._instance.evict += count
        if self._instance.doing is Doing.IDLE:
            self._give_back()
        self._disturb()

    def usage(self) -> tuple[Usage, ...]:
        """Returns the work done since the last call."""
        rows = self._instance.usage
        done = rows
        self._instance.usage = [Usage(rows[-1].instance, rows[-1].role)] if rows else []
        return tuple(row for row in done if row.steps or row.prompt_tokens)

    def _disturb(self) -> None:
        """Handles a change: makes the next boundary the end of the current step, or now."""
        now = max(self._clock.now(), self._reached)
        if self._instance.doing is Doing.IDLE:
            self._instance.begin(now)
        else:
            self._instance.stop_at_boundary(now)
        self._arm()

    def _give_back(self) -> None:
        for request in self._instance.evicted():
            for stream in request.streams:
                self._leaves.pop(stream)(stream)

    def _arm(self) -> None:
        """Sets the timer to the end of the current work."""
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
        """Processes everything that is done by now."""
        instance = self._instance
        while instance.doing is not Doing.IDLE and instance.ends <= self._clock.now():
            self._reached = instance.ends
            gone = instance.reach_boundary()
            instance.outstanding -= len(gone)
            for stream in gone:
                self._leaves.pop(stream)(stream)
            self._give_back()
            instance.begin(self._reached)
