"""Keeps a lease alive in a thread of its own, and keeps the main loop from writing after the lease is lost.

The lease is a run's, or the right to drive a pipeline, a sweep or a soup, or to maintain the home. A driver that was suspended
and resumed may wrongly believe that it still holds its lease. So before a side effect, the main loop calls `check`, which
compares this process's monotonic clock with the lease's deadline. Past the deadline, it does nothing until the ledger either
confirms the term or reports that it was replaced. The lease of a main loop that exceeds its allowed time is not renewed.

The service group's keeper holds the lease of an undriven run for a moment at a time; a driver waits for it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from db.core.engine import Fence
from db.core.errors import Fenced, LeaseHeld, LedgerError, LedgerUnavailable
from db.core.holder import is_gone, this_process
from db.core.subjects import in_words, of_run
from db.ledger import Ledger
from yatt_core.errors import FencedError

log = logging.getLogger("yatt_core.flow")
RENEWALS_PER_LIFE = 5
DRIVER = "yatt driver of "
"""Prefix of the name of a holder that is a driver."""
KEEPER = "yatt keeper"
"""Prefix of the name of a holder that only delivers the outbox and soon releases the lease."""
PATIENCE_SECONDS = 150.0
ASK_SECONDS = 0.2
"""How long a driver waits for a keeper: longer than the slowest delivery to a tracker, which nothing interrupts."""
LIFE_SECONDS = 30.0
"""Lifetime of a lease that no driver holds: of pipelines, sweeps, soups, suites, the home, and runs that a command works on."""


def is_keeper(holder: str) -> bool:
    """Returns True if the holder of a lease is a keeper, which only delivers the outbox."""
    return holder.startswith(KEEPER)


def take_lease(ledger: Ledger, run: str, work: str, life_seconds: float, patience: float = PATIENCE_SECONDS) -> Fence:
    """Takes the lease for this process; waits up to `patience` seconds if a keeper holds it.

    work: the purpose, as part of the holder's name.

    Raises `LeaseHeld` if a process other than a keeper holds the lease, or a keeper holds it for longer than that.
    """
    give_up = time.monotonic() + patience
    waits = False
    while True:
        try:
            return ledger.leases.acquire(run, this_process(work), life_seconds)
        except LeaseHeld as error:
            if not is_keeper(error.holder) or time.monotonic() > give_up:
                raise
            if not waits:
                log.info("%s: waiting until %s has delivered what the last driver left", run, error.holder)
            waits = True
        time.sleep(ASK_SECONDS)


def refusal_of_lease(ledger: Ledger, run: str) -> LeaseHeld | None:
    """Returns the error with which a run's lease could not be taken now, because a living process drives it; else None."""
    line = ledger.overview.line(run)
    holder = ledger.leases.holders().get(run)
    if holder is None or line.lease_expires_in <= 0 or is_gone(holder) or is_keeper(holder.text):
        return None
    return LeaseHeld(of_run(run), holder.text, line.lease_expires_in)


def give_back(ledger: Ledger, fence: Fence) -> None:
    """Releases a lease, unless another process has taken it over; of a ledger that does not answer, it ends by itself."""
    try:
        ledger.leases.release(fence)
    except Fenced:
        return
    except LedgerUnavailable as error:
        log.warning("the lease of %s could not be given back, and ends by itself: %s", in_words(fence.subject), error)


class LeaseKeeper:
    """Renews a lease `RENEWALS_PER_LIFE` times per lifetime, through its own connection.

    fence: what the writes of the lease's holder carry.
    wait_seconds: how long `check` waits for a ledger that does not answer.
    on_beat: called with the ledger at each renewal.
    on_loss: called once the lease is lost.
    """

    def __init__(
        self,
        address: str,
        fence: Fence,
        life_seconds: float,
        wait_seconds: float,
        on_beat: Callable[[Ledger], None] = lambda ledger: None,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self.fence = fence
        self._life = life_seconds
        self._wait = wait_seconds
        self._on_beat = on_beat
        self._on_loss = on_loss
        self._ledger: Ledger | None = None
        self._deadline = time.monotonic() + life_seconds
        self._allowed_until = float("inf")
        self._work = ""
        self._lost = ""
        self._ended = threading.Event()
        self._told = threading.Condition()
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._renew_for_ever, name="lease", daemon=True)

    def start(self) -> None:
        """Starts the thread that renews the lease."""
        self._thread.start()

    def stop(self) -> None:
        """Stops renewing; releasing the lease is up to the caller."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(self._life)

    def allow(self, seconds: float, work: str) -> None:
        """Allows the main loop this many seconds for some work; after that, the lease is no longer renewed."""
        self._allowed_until = time.monotonic() + seconds
        self._work = work

    def extend(self, seconds: float) -> None:
        """Adds to the time that was allowed for the current work."""
        self._allowed_until += seconds

    @property
    def is_valid(self) -> bool:
        """True if the lease is valid by this process's clock."""
        return not self._lost and time.monotonic() <= self._deadline

    def check(self) -> None:
        """Returns if the lease is valid; past its deadline, waits until the ledger has confirmed the term.

        Raises `FencedError` if the lease was lost, and `LedgerUnavailable` if the ledger does not answer within
        `wait_seconds`.
        """
        with self._told:
            give_up = time.monotonic() + self._wait
            while not self._lost and time.monotonic() > self._deadline:
                if self._ended.is_set() or time.monotonic() > give_up:
                    overdue = time.monotonic() - self._deadline
                    raise LedgerUnavailable(
                        f"the lease of term {self.fence.term} expired {overdue:.1f} s ago, and the ledger does not confirm it"
                    )
                self._told.wait(self._life / RENEWALS_PER_LIFE)
            if self._lost:
                raise FencedError(self._lost)

    def _renew_for_ever(self) -> None:
        try:
            while not self._ended.wait(self._life / RENEWALS_PER_LIFE) and not self._lost:
                if time.monotonic() > self._allowed_until:
                    self._lose(f"the driver is stuck in {self._work}:\n{self._stack()}")
                else:
                    self._renew()
        finally:
            if self._ledger is not None:
                self._ledger.close()

    def _renew(self) -> None:
        asked = time.monotonic()
        try:
            if self._ledger is None:
                self._ledger = Ledger.open(self._address, migrate=False)
            self._ledger.leases.renew(self.fence, self._life)
            self._on_beat(self._ledger)
        except LedgerUnavailable as error:
            log.warning("the lease could not be renewed: %s", error)
        except LedgerError as error:
            self._lose(str(error))
        except Exception as error:  # noqa: BLE001 - if the thread died, the lease would end without a message
            self._lose(f"it could not be renewed: {type(error).__name__}: {error}")
        else:
            with self._told:
                self._deadline = asked + self._life
                self._told.notify_all()

    def _lose(self, reason: str) -> None:
        log.error("the lease of %s is lost: %s", in_words(self.fence.subject), reason)
        with self._told:
            self._lost = reason
            self._told.notify_all()
        self._on_loss()

    def _stack(self) -> str:
        """Returns the main thread's stack."""
        frame = sys._current_frames().get(self._main or 0)
        return "".join(traceback.format_stack(frame)) if frame else "the main thread has ended"


def _taken_within(ledger: Ledger, subject: str, work: str, life_seconds: float, patience: float) -> Fence:
    give_up = time.monotonic() + patience
    while True:
        try:
            return ledger.leases.take(subject, this_process(work), life_seconds)
        except LeaseHeld:
            if time.monotonic() >= give_up:
                raise
        time.sleep(ASK_SECONDS)


@contextmanager
def renewed(ledger: Ledger, fence: Fence, life_seconds: float = LIFE_SECONDS) -> Iterator[LeaseKeeper]:
    """Renews a lease meanwhile; releasing it is up to the caller."""
    keeper = LeaseKeeper(ledger.address, fence, life_seconds, life_seconds)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()


@contextmanager
def operator_lease(
    ledger: Ledger, run: str, work: str, patience: float = PATIENCE_SECONDS, life_seconds: float = LIFE_SECONDS
) -> Iterator[LeaseKeeper]:
    """Holds the lease of a run for a command while nothing drives it: takes it, renews it, and releases it at the end.

    work, patience: as for `take_lease`.

    Raises `LeaseHeld`.
    """
    fence = take_lease(ledger=ledger, run=run, work=work, life_seconds=life_seconds, patience=patience)
    with _kept(ledger, fence, life_seconds) as keeper:
        yield keeper


@contextmanager
def held(
    ledger: Ledger, subject: str, work: str, patience: float = 0.0, life_seconds: float = LIFE_SECONDS
) -> Iterator[LeaseKeeper]:
    """Holds another lease than a run's: takes it, renews it, and releases it at the end.

    work: the purpose, as part of the holder's name.

    patience: seconds to wait for a holder, whose host may be lost.

    Raises `LeaseHeld` with this subject if it is held for longer.
    """
    fence = _taken_within(ledger=ledger, subject=subject, work=work, life_seconds=life_seconds, patience=patience)
    with _kept(ledger, fence, life_seconds) as keeper:
        yield keeper


@contextmanager
def _kept(ledger: Ledger, fence: Fence, life_seconds: float) -> Iterator[LeaseKeeper]:
    """Renews a lease meanwhile, and releases it at the end."""
    try:
        with renewed(ledger, fence, life_seconds) as keeper:
            yield keeper
    finally:
        give_back(ledger, fence)
