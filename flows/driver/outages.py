"""Waits for something outside of YATT that is away, and tries again until it is back.

Consumes the error with which an attempt at a phase has ended. Produces pauses between attempts; what is waited for, and
since when, is the reason of the run's state. No attempt is charged to a budget. A wait ends with the outage, with a
request to stop, or after `recovery.wait_hours`, when the run is paused.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from flows.driver.context import RunContext
from flows.driver.run_status import set_state
from flows.driver.stopping import StopRequests
from flows.driver.threads import DriverThreads
from yatt_core.errors import AwayError
from yatt_core.logs import redact
from yatt_core.outage import pause_before

log = logging.getLogger("yatt_core.flow")
START = "start"
"""Stands for the phase before there is one."""
LOOK_SECONDS = 0.5
"""Between two looks at whether the session has to stop."""
HOUR = 3600.0


@dataclass(slots=True)
class Outage:
    """What is away.

    phase: the phase that needs it.
    since: when it was found to be away, in the clock's monotonic seconds.
    at: the same moment for people.
    """

    dependency: str
    phase: str
    since: float
    at: str
    tries: int = 0


class Outages:
    """The outages of a session, one at a time.

    chance: a source of numbers in [0, 1).
    """

    def __init__(
        self,
        context: RunContext,
        stops: StopRequests,
        threads: DriverThreads,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._context, self._stops, self._threads, self._chance = context, stops, threads, chance
        self._outage: Outage | None = None

    def wait(self, error: AwayError, phase: str) -> bool:
        """Waits before the next try of a phase; returns False if the run has waited for as long as it may."""
        context = self._context
        now = context.clock.monotonic()
        reason = redact(str(error))
        outage = self._outage
        if outage is None or outage.dependency != error.dependency:
            at = datetime.fromtimestamp(context.clock.time_ms() / 1000, UTC).strftime("%H:%M:%S UTC")
            outage = self._outage = Outage(error.dependency, phase, now, at)
            log.warning("%s", reason)
            set_state(context, "running", f"waiting for {redact(outage.dependency)} since {at}: {reason}")
        if now - outage.since > context.spec.recovery.wait_hours * HOUR:
            return False
        pause = pause_before(outage.tries, self._chance())
        outage.tries += 1
        context.observer.warned(
            f"waiting for {redact(outage.dependency)} since {outage.at}, next try in {pause:.0f} s: {reason}"
        )
        self._threads.allow(pause, f"waiting for {redact(outage.dependency)}")
        until = now + pause
        while not self._stops.asked and (left := until - context.clock.monotonic()) > 0:
            self._threads.check()
            context.clock.sleep(min(LOOK_SECONDS, left))
        return True

    def over(self, phase: str) -> None:
        """Notes that a phase has ended well: nothing that it needs is away."""
        outage = self._outage
        if outage is None or outage.phase != phase:
            return
        self._outage = None
        seconds = self._context.clock.monotonic() - outage.since
        self._context.observer.stage(f"{redact(outage.dependency)} is back after {seconds:.0f} s")
        set_state(self._context, "running", "")
