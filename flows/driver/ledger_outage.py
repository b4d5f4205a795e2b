"""Waits for a ledger that does not answer, and keeps what the driver has meanwhile.

Consumes the ledger's error. Produces pauses, a file in the run's folder that says what is waited for, and, once the ledger
answers, open attempts that have failed at nobody's expense. Devices are given back after `recovery.hold_minutes`, without a
checkpoint, for the ledger could not record it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from db.core.errors import LedgerUnavailable
from db.core.holder import this_process
from flows.driver.context import RunContext
from flows.driver.outages import HOUR, LOOK_SECONDS, MINUTE
from flows.driver.standby import Standby
from flows.driver.stopping import StopRequests
from flows.driver.threads import DriverThreads
from flows.run.lease import DRIVER
from flows.run.waiting_file import WaitingFile, forget_waiting, write_waiting
from yatt_core.errors import FailureClass, InfrastructureError
from yatt_core.logs import redact
from yatt_core.outage import pause_before

log = logging.getLogger("yatt_core.flow")
LEDGER = "the ledger"
LONGEST_SECONDS = 5.0


class LedgerOutage:
    """The ledger's outages in one session.

    chance: a source of numbers in [0, 1).
    seconds: time waited in this session that no commit has accounted for yet.
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
        self.seconds = 0.0

    def wait(self, error: LedgerUnavailable) -> None:
        """Returns once the ledger has recorded that open attempts have failed.

        Raises `LedgerUnavailable` if it does not answer for as long as the run may wait, or the session is asked to stop.
        """
        context, clock, recovery = self._context, self._context.clock, self._context.spec.recovery
        reason = redact(str(error))
        log.warning("the ledger does not answer: %s", error)
        longest = recovery.wait_hours * HOUR if recovery.ledger_wait_seconds is None else recovery.ledger_wait_seconds
        since, since_ms, tries = clock.monotonic(), clock.time_ms(), 0
        returned_ms: int | None = None
        try:
            while True:
                try:
                    context.ledger.phases.fail_open(context.fence, reason, FailureClass.AWAY.value)
                except LedgerUnavailable as last:
                    waited = clock.monotonic() - since
                    if waited > longest:
                        # Always of this class, whatever the cause: the address is right, since the run has used it before.
                        raise LedgerUnavailable(f"the ledger did not answer for {longest:g} s: {last}") from last
                    if self._stops.asked:
                        raise LedgerUnavailable(f"{self._stops.reason} while the ledger is away: {last}") from last
                else:
                    break
                held = recovery.hold_minutes * MINUTE
                if waited >= held and not self._standby.gave_back:
                    self._standby.give_back_unrecorded()
                    returned_ms = clock.time_ms()
                pause = pause_before(tries, self._chance(), LONGEST_SECONDS)
                if not self._standby.gave_back:
                    pause = min(pause, max(0.0, since + held - clock.monotonic()))
                tries += 1
                context.observer.warned(f"the ledger does not answer, next try in {pause:.0f} s: {reason}")
                self._note(reason, since_ms, clock.time_ms() + round(1000 * pause), returned_ms)
                self._threads.allow(pause, "waiting for the ledger")
                until = clock.monotonic() + pause
                while not self._stops.asked and (left := until - clock.monotonic()) > 0:
                    clock.sleep(min(LOOK_SECONDS, left))
        finally:
            self.seconds += clock.monotonic() - since
            forget_waiting(context.folder)
        self._standby.took()
        context.observer.stage(f"the ledger is back after {clock.monotonic() - since:.0f} s")

    def _note(self, reason: str, since_ms: int, next_try_at: int, returned_ms: int | None) -> None:
        context = self._context
        waiting = WaitingFile(
            run=context.run,
            dependency=LEDGER,
            reason=reason,
            since=since_ms,
            next_try_at=next_try_at,
            iteration=self._standby.committed,
            holder=this_process(f"{DRIVER}{context.run}"),
            returned_at=returned_ms,
        )
        try:
            write_waiting(context.folder, waiting)
        except InfrastructureError as error:
            log.warning("what the driver waits for cannot be written: %s", error)
