"""Waits for something outside of YATT that is away, and tries again until it is back.

Consumes the error with which an attempt at a phase has ended. Produces pauses, the state `waiting` with what is waited for,
and tries at what is away that cost next to nothing; only if it answers, or nothing less can tell, the phase is attempted
again. No attempt is charged to a budget. Devices are kept for `recovery.hold_minutes`, then given back. A wait ends with the
outage, with a request to stop, or after `recovery.wait_hours`, when the run is paused.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from db.write.waits import WaitRow
from flows.driver.context import RunContext
from flows.driver.run_status import set_state, tell_people
from flows.driver.standby import Standby
from flows.driver.stopping import StopRequests
from flows.driver.threads import DriverThreads
from yatt_core.cluster.nodes import A_NODE
from yatt_core.errors import AwayError
from yatt_core.logs import redact
from yatt_core.outage import LONGEST_BLIND_SECONDS, LONGEST_NEAR_SECONDS, LONGEST_SECONDS, pause_before

log = logging.getLogger("yatt_core.flow")
START = "start"
"""Stands for the phase before there is one."""
LOOK_SECONDS = 0.5
"""Between two looks at whether the session has to stop."""
ASK_SECONDS = 2.0
"""Between two looks at whether somebody wants a try at once."""
TOLD_SECONDS = 60.0
"""People are told of an outage that lasts longer."""
MINUTE, HOUR = 60.0, 3600.0


@dataclass(slots=True)
class Outage:
    """What is away.

    dependency, reason: without secrets.
    phase: the phase that needs it.
    since: when it was found to be away, in the clock's monotonic seconds.
    since_ms: the same moment, in milliseconds since 1970.
    holds_since: since when the run has held devices that it cannot use, so much earlier as it has held them before; None while
        it holds none.
    returned_ms: when it gave them back, in milliseconds since 1970.
    blind: whether only another attempt can tell whether it is back.
    """

    dependency: str
    reason: str
    phase: str
    since: float
    since_ms: int
    holds_since: float | None
    returned_ms: int | None = None
    tries: int = 0
    blind: bool = False
    told: bool = False

    @property
    def at(self) -> str:
        """The beginning, for people."""
        return datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%H:%M:%S UTC")

    @property
    def text(self) -> str:
        """What is waited for, for people."""
        given = "" if self.returned_ms is None else "; its devices are given back"
        return f"waiting for {self.dependency} since {self.at}{given}: {self.reason}"


class Outages:
    """The outages of a session, one at a time.

    chance: a source of numbers in [0, 1).
    seconds: time waited in this session that no commit has accounted for yet.
    tell: called with what is waited for, and with an empty text once it is back.
    """

    def __init__(
        self,
        context: RunContext,
        stops: StopRequests,
        threads: DriverThreads,
        standby: Standby,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._context, self._stops, self._threads, self._standby = context, stops, threads, standby
        self._chance = chance
        self._outage: Outage | None = None
        self.seconds = 0.0
        self.tell: Callable[[str], None] = lambda text: None

    @property
    def gave_back(self) -> bool:
        """True while the session holds no devices, because it gave them back."""
        return self._standby.gave_back

    def wait(self, error: AwayError, phase: str) -> bool:
        """Waits until a phase should be tried again, or the session is asked to stop.

        Returns False if the run has waited for as long as it may.
        """
        clock, recovery = self._context.clock, self._context.spec.recovery
        outage = self._outage_of(error, phase)
        began = clock.monotonic()
        if outage.holds_since is None and not self._standby.gave_back:
            # The ledger was away, too, and the driver took devices again when it came back.
            outage.holds_since = self._used_up()
        try:
            while True:
                now = clock.monotonic()
                if now - outage.since > recovery.wait_hours * HOUR:
                    return False
                held = outage.holds_since
                if held is not None and now - held >= recovery.hold_minutes * MINUTE:
                    self._give_back(outage)
                if not outage.told and now - outage.since >= TOLD_SECONDS:
                    outage.told = True
                    tell_people(self._context, f"waiting-{outage.since_ms}", f"the run is {outage.text}")
                self._pause(outage)
                if self._stops.asked:
                    return True
                back = self._standby.answers(outage.dependency)
                outage.blind = back is None
                if back is not False:
                    break
        finally:
            self.seconds += clock.monotonic() - began
        if self._standby.gave_back:
            self._context.observer.stage(f"{outage.dependency} may be back: taking devices again")
            self._standby.took()
            outage.holds_since = self._used_up()
        return True

    def over(self, phase: str) -> None:
        """Notes that a phase has ended well: nothing that it needs is away."""
        outage = self._outage
        if outage is None or outage.phase != phase:
            return
        context = self._context
        self._outage = None
        seconds = context.clock.monotonic() - outage.since
        said = f"{outage.dependency} is back after {seconds:.0f} s"
        context.observer.stage(said)
        context.ledger.waits.over(context.fence)
        set_state(context, "running", "", occasion=f"-{outage.since_ms}")
        if outage.told:
            tell_people(context, f"back-{outage.since_ms}", f"the run goes on: {said}")
        self.tell("")

    def _used_up(self) -> float:
        """Returns since when devices count as held that were taken again: so long ago that they are due if it is still away."""
        return self._context.clock.monotonic() - self._context.spec.recovery.hold_minutes * MINUTE

    def _outage_of(self, error: AwayError, phase: str) -> Outage:
        """Returns the outage that an error belongs to: the one that is known, or a new one."""
        context, known, dependency = self._context, self._outage, redact(error.dependency)
        if known is not None and known.dependency == dependency:
            return known
        now, now_ms = context.clock.monotonic(), context.clock.time_ms()
        found = Outage(
            dependency=dependency,
            reason=redact(str(error)),
            phase=phase,
            since=now,
            since_ms=now_ms,
            holds_since=now,
        )
        self._outage = found
        log.warning("%s", found.reason)
        self._say(found)
        return found

    def _say(self, outage: Outage) -> None:
        set_state(self._context, "waiting", outage.text, occasion=f"-{outage.since_ms}-{outage.returned_ms or 0}")
        self.tell(outage.text)

    def _give_back(self, outage: Outage) -> None:
        context = self._context
        allowed = 2 * context.spec.recovery.phase_deadline_seconds
        self._threads.allow(allowed, "giving the devices back")
        self._standby.give_back(outage.phase)
        outage.holds_since = None
        outage.returned_ms = context.clock.time_ms()
        self._say(outage)

    def _pause(self, outage: Outage) -> None:
        """Sleeps until the next try, a request to stop, or one to try at once."""
        context, clock = self._context, self._context.clock
        longest = LONGEST_NEAR_SECONDS if outage.dependency == A_NODE and not outage.blind else LONGEST_SECONDS
        if outage.blind and self._standby.gave_back:
            longest = LONGEST_BLIND_SECONDS
        pause = pause_before(outage.tries, self._chance(), longest)
        if outage.holds_since is not None:
            # One more try when the devices are due, not one pause later.
            due = outage.holds_since + context.spec.recovery.hold_minutes * MINUTE
            pause = min(pause, max(0.0, due - clock.monotonic()))
        outage.tries += 1
        context.ledger.waits.record(
            context.fence,
            WaitRow(
                run=context.run,
                dependency=outage.dependency,
                reason=outage.reason,
                since=outage.since_ms,
                next_try_at=clock.time_ms() + round(1000 * pause),
                tries=outage.tries,
                returned_at=outage.returned_ms,
            ),
        )
        context.observer.warned(
            f"waiting for {outage.dependency} since {outage.at}, next try in {pause:.0f} s: {outage.reason}"
        )
        self._threads.allow(pause, f"waiting for {outage.dependency}")
        until = clock.monotonic() + pause
        look_again = clock.monotonic() + ASK_SECONDS
        while not self._stops.asked and (left := until - clock.monotonic()) > 0:
            self._threads.check()
            if clock.monotonic() >= look_again:
                if context.ledger.waits.take(context.fence):
                    return
                look_again = clock.monotonic() + ASK_SECONDS
            clock.sleep(min(LOOK_SECONDS, left))
