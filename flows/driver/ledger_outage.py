"""Waits for a ledger that does not answer, and keeps what the driver has meanwhile.

Consumes the ledger's errors. Produces pauses, a file in the run's folder that says what is waited for, and, once the ledger
records again, open attempts that have failed at nobody's expense. Devices are given back after `recovery.hold_minutes`, without a
checkpoint, for the ledger could not record it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from db.core.errors import LedgerUnavailable
from db.core.holder import this_process
from flows.driver.context import RunContext
from flows.driver.outages import HOUR, MINUTE
from flows.driver.standby import Standby
from flows.driver.stopping import LOOK_SECONDS, StopRequests, wait_unless_stopped
from flows.driver.threads import DriverThreads
from flows.run.lease import DRIVER
from flows.run.waiting_file import WaitingFile, forget_waiting, write_waiting
from yatt_core.errors import FailureClass, InfrastructureError
from yatt_core.logs import redact
from yatt_core.outage import pause_before

log = logging.getLogger("yatt_core.flow")
LEDGER = "the ledger"
LONGEST_SECONDS = 5.0
CALM_SECONDS = 60.0
"""After working for so long with a ledger that answers, a run finds a new outage, not more of the last one."""


class LedgerOutage:
    """The ledger's outages in one session. One lasts until a phase has been recorded as done, or all has been well for a while.

    chance: a source of numbers in [0, 1).
    committed: the last iteration that the session knows to be committed; -1 before the first.
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
        self._context = context
        self._stops = stops
        self._threads = threads
        self._standby = standby
        self._chance = chance
        self._since: float | None = None
        self._since_ms = 0
        self._tries = 0
        self._answered = 0.0
        self.committed = -1
        self.seconds = 0.0

    def wait(self, error: LedgerUnavailable) -> None:
        """Returns once the ledger has recorded that open attempts have failed, and the lease's new end.

        Raises `LedgerUnavailable` if it does not for as long as the run may wait, or the session is asked to stop.
        """
        context = self._context
        clock = self._context.clock
        reason = redact(str(error))
        log.warning("the ledger does not answer: %s", error)
        began = clock.monotonic()
        if self._since is None or began - self._answered > CALM_SECONDS:
            self._since = began
            self._since_ms = clock.time_ms()
            self._tries = 0
        else:
            self._pause(reason)  # it has answered in between, but not recorded what the run did
        try:
            while (last := self._record(reason)) is not None:
                reason = redact(str(last))
                self._give_up(last)
                if clock.monotonic() - self._since >= self._hold_seconds and self._standby.returned_ms is None:
                    self._standby.give_back_unrecorded()
                self._pause(reason)
        finally:
            self.seconds += clock.monotonic() - began
            forget_waiting(context.folder)
        self._give_up(error)
        self._answered = clock.monotonic()
        context.observer.stage(f"the ledger answers after {clock.monotonic() - self._since:.0f} s")

    def over(self) -> None:
        """Notes that the ledger has recorded that a phase is done."""
        self._since = None

    @property
    def _hold_seconds(self) -> float:
        return self._context.spec.recovery.hold_minutes * MINUTE

    def _record(self, reason: str) -> LedgerUnavailable | None:
        """Records what has to be recorded; returns why that is not possible."""
        context = self._context
        ledger = self._context.ledger
        try:
            ledger.phases.fail_open(context.fence, reason, FailureClass.AWAY.value)
            # This changes a row whatever the attempts are: a full disk answers questions all the same.
            ledger.leases.renew(context.fence, context.spec.recovery.lease_seconds)
            self._standby.charge_nothing()
        except LedgerUnavailable as error:
            return error
        return None

    def _give_up(self, last: LedgerUnavailable) -> None:
        """Raises `LedgerUnavailable` if the run has waited for long enough, or is asked to stop while it waits."""
        recovery = self._context.spec.recovery
        longest = recovery.wait_hours * HOUR if recovery.ledger_wait_seconds is None else recovery.ledger_wait_seconds
        assert self._since is not None, "an outage has begun"
        if self._context.clock.monotonic() - self._since > longest:
            # Always of this class, whatever the cause: the address is right, since the run has used it before.
            raise LedgerUnavailable(f"the ledger did not answer for {longest:g} s: {last}") from last
        if self._stops.asked:
            raise LedgerUnavailable(f"{self._stops.reason} while the ledger is away: {last}") from last

    def _pause(self, reason: str) -> None:
        context = self._context
        clock = self._context.clock
        pause = pause_before(self._tries, self._chance(), LONGEST_SECONDS)
        if self._standby.returned_ms is None and self._since is not None:
            pause = min(pause, max(LOOK_SECONDS, self._since + self._hold_seconds - clock.monotonic()))
        self._tries += 1
        context.observer.warned(f"the ledger does not answer, next try in {pause:.0f} s: {reason}")
        self._note(reason, clock.time_ms() + round(1000 * pause))
        self._threads.allow(pause, "waiting for the ledger")
        wait_unless_stopped(self._stops, clock, pause)

    def _note(self, reason: str, next_try_at: int) -> None:
        context = self._context
        waiting = WaitingFile(
            run=context.run,
            dependency=LEDGER,
            reason=reason,
            since=self._since_ms,
            next_try_at=next_try_at,
            iteration=self.committed,
            holder=this_process(f"{DRIVER}{context.run}"),
            returned_at=self._standby.returned_ms,
        )
        try:
            write_waiting(context.folder, waiting)
        except InfrastructureError as error:
            log.warning("what the driver waits for cannot be written: %s", error)
