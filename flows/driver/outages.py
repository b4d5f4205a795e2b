"""Waits for something outside of YATT that is away, and tries again until it is back.

Consumes the errors with which attempts at phases have ended. Produces pauses, the state `waiting` with what is waited for,
and tries at what is away that cost next to nothing; only if it answers, or nothing less can tell, the phase is attempted
again. No attempt is charged to a budget. Devices are kept for `recovery.hold_minutes`, then given back. A wait ends with the
outage, with a request to stop, or after `recovery.wait_hours`, when the run is paused.

The loop notes an outage where it shows (`found`), and waits between attempts (`wait`), so that a ledger that is away meanwhile is
waited for like at any other place of the loop, and the wait goes on afterwards.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from db.write.waits import WaitRow
from flows.driver.context import RunContext
from flows.driver.guards import Ending
from flows.driver.run_status import set_state, tell_people
from flows.driver.standby import Standby
from flows.driver.stopping import LOOK_SECONDS, StopRequests, wait_unless_stopped
from flows.driver.threads import DriverThreads
from yatt_core.cluster.nodes import A_NODE
from yatt_core.errors import IS_AWAY, AwayError, ExitCode
from yatt_core.logs import redact
from yatt_core.outage import LONGEST_BLIND_SECONDS, LONGEST_NEAR_SECONDS, LONGEST_SECONDS, pause_before

log = logging.getLogger("yatt_core.flow")
START = "start"
RECOVER = "recover"
CLOSE = "close"
"""The phases that make the actors ready, and what stands for all that follows the last phase."""
NOT_INTERRUPTED = frozenset({START, RECOVER, CLOSE})
"""In these a session that is asked to stop is not waiting for what it still could finish."""
AT_THE_END = frozenset({"commit", "commit_start", "checkpoint", CLOSE})
"""These are not repeated as such after a recovery, which needs the same things."""
ASK_SECONDS = 2.0
"""Between two looks at whether somebody wants a try at once."""
TOLD_SECONDS = 60.0
"""People are told of an outage that lasts longer."""
MINUTE = 60.0
HOUR = 3600.0


@dataclass(slots=True)
class Outage:
    """What is away.

    dependency, reason: its name and why it counts as away, by the newest attempt; without secrets.
    phase: the phase that needs it.
    failed_in: the phase of the last attempt.
    since: when it was found to be away, in the clock's monotonic seconds.
    since_ms: the same moment, in milliseconds since 1970.
    progressed_at: when the run had last sealed or committed something when the outage was last found.
    devices_due: when the devices are to be given back, in the clock's monotonic seconds.
    is_due: whether to wait before the next attempt.
    blind: whether only another attempt can tell whether it is back.
    told: whether people were told.
    """

    dependency: str
    reason: str
    phase: str
    failed_in: str
    since: float
    since_ms: int
    progressed_at: int
    devices_due: float
    tries: int = 0
    is_due: bool = True
    blind: bool = False
    told: bool = False

    @property
    def error(self) -> str:
        """Name and reason, as in the error that was raised."""
        return f"{self.dependency}{IS_AWAY}{self.reason}"

    @property
    def at(self) -> str:
        """The beginning, for people."""
        return datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%H:%M:%S UTC")


class Outages:
    """The outages of a session, one at a time.

    chance: a source of numbers in [0, 1).
    ending: returns how a guard or a gate ends the session; None if none does.
    given_back: called once the devices are given back, with a checkpoint if that was possible.
    seconds: time waited in this session that no commit has accounted for yet.
    tell: called with what is waited for, and with an empty text once it is back.
    """

    def __init__(
        self,
        context: RunContext,
        stops: StopRequests,
        threads: DriverThreads,
        standby: Standby,
        ending: Callable[[], Ending | None],
        given_back: Callable[[], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._context = context
        self._stops = stops
        self._threads = threads
        self._standby = standby
        self._ending = ending
        self._given_back = given_back
        self._chance = chance
        self._found: tuple[AwayError, str] | None = None
        self._outage: Outage | None = None
        self.seconds = 0.0
        self.tell: Callable[[str], None] = lambda text: None

    def enter_branch(self, context: RunContext) -> None:
        """Switches to another branch."""
        self._context = context

    def found(self, error: AwayError, phase: str) -> None:
        """Notes that an attempt at a phase has ended because something is away; the next `wait` waits for it."""
        self._found = error, phase

    def wait(self) -> Ending | None:
        """Waits until a phase should be attempted again; returns how the session must end instead, if it must.

        Returns None at once if nothing is waited for.
        """
        if self._found is not None:
            self._note(*self._found)
            self._found = None
        outage = self._outage
        if outage is None or not outage.is_due:
            # They may have been given back while the ledger was away.
            return None if self._standby.take() else _in_the_queue("the ledger")
        clock = self._context.clock
        began = clock.monotonic()
        try:
            ending = self._await(outage)
        finally:
            self.seconds += clock.monotonic() - began
        outage.is_due = ending is not None  # so that an ending that could not be recorded is returned again
        return ending

    def over(self, phase: str) -> None:
        """Notes that a phase has ended well: nothing that it needs is away."""
        outage = self._outage
        if outage is None or not (phase == outage.phase or (phase == RECOVER and outage.phase in AT_THE_END)):
            return
        context = self._context
        seconds = context.clock.monotonic() - outage.since
        said = f"{outage.dependency} is back after {seconds:.0f} s"
        context.ledger.waits.over(context.fence)
        set_state(context, "running", "", occasion=f"-{outage.since_ms}")
        if outage.told:
            tell_people(context, f"back-{outage.since_ms}", f"the run goes on: {said}")
        context.observer.stage(said)
        self.tell("")
        self._outage = None  # last, so that a ledger that is away has all of it told again

    def _note(self, error: AwayError, phase: str) -> None:
        context = self._context
        dependency = redact(error.dependency)
        now = context.clock.monotonic()
        progressed_at = context.ledger.phases.progressed_at(context.run)
        known = self._outage
        if known is not None and known.dependency == dependency and known.progressed_at == progressed_at:
            known.failed_in = phase
            known.reason = redact(error.reason)
            known.is_due = True
            return
        outage = Outage(
            dependency=dependency,
            reason=redact(error.reason),
            phase=phase,
            failed_in=phase,
            since=now,
            since_ms=context.clock.time_ms(),
            progressed_at=progressed_at,
            devices_due=now + self._hold_seconds,
        )
        log.warning("%s", outage.error)
        self._say(outage)
        self._outage = outage

    @property
    def _hold_seconds(self) -> float:
        return self._context.spec.recovery.hold_minutes * MINUTE

    def _await(self, outage: Outage) -> Ending | None:
        context = self._context
        clock = self._context.clock
        recovery = self._context.spec.recovery
        while True:
            if self._is_stopped():
                return self._ending_of_a_stop(outage)
            now = clock.monotonic()
            if now - outage.since > recovery.wait_hours * HOUR:
                hours = f"{recovery.wait_hours:g} h"
                why = f"{outage.error}; waited for {hours}, `yatt resume {context.run}` tries again"
                return Ending.of("pause", why)
            if self._standby.returned_ms is None and now >= outage.devices_due:
                self._threads.allow(2 * recovery.phase_deadline_seconds, "giving the devices back")
                self._standby.give_back(outage.failed_in)
                self._given_back()
                self._say(outage)
            if not outage.told and now - outage.since >= TOLD_SECONDS:
                tell_people(context, f"waiting-{outage.since_ms}", f"the run is {self._text(outage)}")
                outage.told = True
            self._pause(outage)
            if self._is_stopped():
                continue
            self._threads.allow(recovery.phase_deadline_seconds, f"a look at {outage.dependency}")
            back = self._standby.answers(outage.dependency, self._is_stopped)
            outage.blind = back is None
            if back is not False:
                return self._take_devices(outage)

    def _is_stopped(self) -> bool:
        return self._stops.asked

    def _take_devices(self, outage: Outage) -> Ending | None:
        """Has the session take devices again if it gave them back; returns how it ends if it must get others."""
        if self._standby.returned_ms is None:
            return None
        if not self._standby.take():
            return _in_the_queue(outage.dependency)
        # If it is still away, they are given back at once.
        outage.devices_due = self._context.clock.monotonic()
        self._context.observer.stage(f"{outage.dependency} may be back: taking devices again")
        self._say(outage)
        return None

    def _ending_of_a_stop(self, outage: Outage) -> Ending | None:
        """Returns how the session ends, or None if the loop can finish what it began before it heeds the request."""
        if outage.failed_in not in NOT_INTERRUPTED and self._standby.returned_ms is None:
            return None
        why = f"{self._stops.reason} while waiting: {outage.error}"
        return self._ending() or Ending("stopped", why, ExitCode.OK)

    def _text(self, outage: Outage) -> str:
        given = "" if self._standby.returned_ms is None else "; its devices are given back"
        return f"waiting for {outage.dependency} since {outage.at}{given}: {outage.reason}"

    def _say(self, outage: Outage) -> None:
        occasion = f"-{outage.since_ms}-{self._standby.returned_ms or 0}-{outage.tries}"
        set_state(self._context, "waiting", self._text(outage), occasion=occasion)
        self.tell(self._text(outage))

    def _pause(self, outage: Outage) -> None:
        """Sleeps until the next try, a request to stop, or one to try at once."""
        context = self._context
        clock = self._context.clock
        returned_ms = self._standby.returned_ms
        longest = LONGEST_NEAR_SECONDS if outage.dependency == A_NODE and not outage.blind else LONGEST_SECONDS
        if outage.blind and returned_ms is not None:
            longest = LONGEST_BLIND_SECONDS
        pause = pause_before(outage.tries, self._chance(), longest)
        if returned_ms is None:
            pause = min(pause, max(LOOK_SECONDS, outage.devices_due - clock.monotonic()))
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
                returned_at=returned_ms,
            ),
        )
        context.observer.warned(
            f"waiting for {outage.dependency} since {outage.at}, next try in {pause:.0f} s: {outage.reason}"
        )
        self._threads.allow(pause, f"waiting for {outage.dependency}")
        ask_again = clock.monotonic() + ASK_SECONDS

        def is_to_try_now() -> bool:
            nonlocal ask_again
            self._threads.check()
            if clock.monotonic() < ask_again:
                return False
            ask_again = clock.monotonic() + ASK_SECONDS
            return context.ledger.waits.take(context.fence)

        wait_unless_stopped(self._stops, clock, pause, is_to_try_now)


def _in_the_queue(dependency: str) -> Ending:
    return Ending("stopped", f"{dependency} may be back; the run waits in the queue for devices", ExitCode.OK)
