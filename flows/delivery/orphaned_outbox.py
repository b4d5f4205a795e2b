"""Delivers the outbox of runs whose driver is gone, for the service group's keeper.

Consumes the ledger and a deliverer of one kind of rows. Each delivery takes a short lease of its own. Pure functions
decide which run has no driver, and when a failed delivery is retried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from db.core.holder import Holder, is_gone
from db.ledger import Ledger
from db.write.outbox import OutboxEntry, PendingDelivery
from db.write.runs import DRIVEN_STATES
from flows.delivery.outbox import Deliverer, row_ids
from flows.run.creation import current_spec
from flows.run.lease import KEEPER, operator_lease
from flows.run.trackers import for_trackers

LEASE_SECONDS = 10.0
SLICE_SECONDS = 5.0
"""No delivery begins after this time, even if rows are left: a driver may be waiting for the lease."""
BATCH = 10
"""Rows to send to the tracker before checking the time; small, since the tracker may be slow."""
SILENT_SECONDS = 600.0
"""How long a driver whose process cannot be checked counts as alive once its lease has expired: it may be suspended."""
FIRST_DELAY = 10.0
MAX_DELAY = 900.0


def is_dead(pending: PendingDelivery, holder_is_gone: Callable[[Holder], bool] = is_gone) -> bool:
    """Returns True if a run has no driver to deliver its rows: its lease was released, or its holder is gone."""
    if pending.holder is None:
        return True
    return pending.silent_seconds > 0 and (holder_is_gone(pending.holder) or pending.silent_seconds > SILENT_SECONDS)


def lost_runs(ledger: Ledger, holder_is_gone: Callable[[Holder], bool] = is_gone) -> list[str]:
    """Returns the runs whose driver disappeared without an orderly end and has no successor, ordered by id."""
    lost = []
    for run, holder in ledger.leases.holders().items():
        line = ledger.overview.line(run)
        pending = PendingDelivery(run, 0, holder, -line.lease_expires_in)
        if line.run.state in DRIVEN_STATES and is_dead(pending, holder_is_gone):
            lost.append(run)
    return lost


def tell_lost(ledger: Ledger, run: str) -> None:
    """Adds the outbox rows that tell the tracker that a run's driver was killed; the next driver's rows replace that.

    Raises `LeaseHeld` if the run has a driver after all, and what the ledger raises.
    """
    line = ledger.overview.line(run)
    at_ms = int(1000 * (time.time() + min(0.0, line.lease_expires_in)))
    with operator_lease(ledger, run, KEEPER, patience=0.0, life_seconds=LEASE_SECONDS) as lease:
        if (spec := current_spec(ledger, run)).tracking.enabled:
            tags = {"yatt.state": "lost", "yatt.state_reason": "the driver disappeared without an orderly end"}
            entries = [
                OutboxEntry(f"{key}/{kind}", kind, body, at_ms)
                for key in row_ids(run, line.run.current_branch, f"t{line.term}/lost")
                for kind, body in (("tags", tags), ("status", {"status": "KILLED"}))
            ]
            ledger.outbox.enqueue(lease.fence, for_trackers(spec, entries))


@dataclass(frozen=True, slots=True)
class DeliveryBackoff:
    """A run whose rows could not be delivered.

    failures: number of consecutive failures.
    again_at: monotonic time of the next attempt.
    """

    failures: int = 0
    again_at: float = 0.0
    reason: str = ""

    def failed(self, now: float, reason: str) -> DeliveryBackoff:
        """Returns the state after one more failure; the delay doubles, up to `MAX_DELAY`."""
        delay = min(FIRST_DELAY * 2.0 ** min(self.failures, 60), MAX_DELAY)
        return DeliveryBackoff(self.failures + 1, now + delay, reason)


def deliver_dead(ledger: Ledger, run: str, deliverer: Deliverer) -> int:
    """Sends rows of a run without a driver, oldest first, until `SLICE_SECONDS` have passed; returns how many.

    Raises `LeaseHeld` if the run has a driver after all, and what deliverer and ledger raise.
    """
    sent = 0
    # The deliverer is closed last, since it may take long; what was delivered is durable already.
    with closing(deliverer), operator_lease(ledger, run, KEEPER, patience=0.0, life_seconds=LEASE_SECONDS) as lease:
        until = time.monotonic() + SLICE_SECONDS
        while True:
            lease.check()
            count = deliverer.deliver(ledger, lease.fence, last=True)
            sent += count
            if not count or time.monotonic() >= until:
                return sent
