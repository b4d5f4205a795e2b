"""Delivers what runs left in the outbox whose driver is gone: the part of the service group's keeper that knows the ledger.

Consumes the ledger and what delivers one kind of rows; produces deliveries, under a lease of its own that it holds for moments.
Which run is dead, and when a failed one is tried again, is decided by pure functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from db.core.engine import Fence
from db.core.errors import Fenced
from db.core.holder import Holder, is_gone
from db.ledger import Ledger
from db.write.outbox import Undelivered
from flows.delivery.outbox import Deliverer
from flows.run.lease import KEEPER, LeaseKeeper, take_lease

LEASE_SECONDS = 10.0
SLICE_SECONDS = 5.0
"""The lease is given back after so long, though rows are left: a driver may be waiting for it."""
BATCH = 10
"""Rows to the tracker between two looks at the time: a slow one is given few of them."""
SILENT_SECONDS = 600.0
"""A driver that was only stopped goes on under its lease when it is continued; where nobody can tell, it has so long."""
FIRST_DELAY, MAX_DELAY = 10.0, 900.0


def is_dead(letters: Undelivered, holder_is_gone: Callable[[Holder], bool] = is_gone) -> bool:
    """Whether nobody is there who would deliver a run's rows: its lease was given back, or its holder is certainly gone."""
    if letters.holder is None:
        return True
    return letters.silent_seconds > 0 and (holder_is_gone(letters.holder) or letters.silent_seconds > SILENT_SECONDS)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A run whose rows could not be delivered. failures: in a row. again_at: monotonic time of the next try."""

    failures: int = 0
    again_at: float = 0.0
    reason: str = ""

    def failed(self, now: float, reason: str) -> Trouble:
        """Once more: the delay doubles, up to its bound."""
        delay = min(FIRST_DELAY * 2.0 ** min(self.failures, 60), MAX_DELAY)
        return Trouble(self.failures + 1, now + delay, reason)


def deliver_dead(address: str, ledger: Ledger, run: str, deliverer: Deliverer) -> int:
    """Sends rows of a dead run, oldest first, for `SLICE_SECONDS` at most; returns how many.

    address: of the ledger. Raises `LeaseHeld` when the run has a driver after all, and what deliverer and ledger raise.
    """
    fence = take_lease(ledger, run, KEEPER, LEASE_SECONDS, patience=0.0)
    keeper = LeaseKeeper(address, fence, LEASE_SECONDS, LEASE_SECONDS)
    keeper.start()
    sent, until = 0, time.monotonic() + SLICE_SECONDS
    try:
        while True:
            keeper.check()
            count = deliverer.deliver(ledger, fence, last=True)
            sent += count
            if not count or time.monotonic() >= until:
                break
    finally:
        keeper.stop()
        _give_back(ledger, fence)
    return sent


def _give_back(ledger: Ledger, fence: Fence) -> None:
    try:
        ledger.leases.release(fence)
    except Fenced:
        return  # a driver has taken over: it delivers the rest
