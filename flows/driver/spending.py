"""The hours and device hours that a run has used, over all its sessions and branches, including killed drivers.

Consumes the leases in the ledger (when they were taken, and when they were released or last renewed), and what the run was
charged: device hours are those of its billing, so that devices count while they are held, and not while a run that waits
has given them back. Leases for the delivery of the outbox do not count. The current session is measured by the driver's clock.
"""

from __future__ import annotations

from db.core.engine import Fence
from db.ledger import Ledger
from flows.billing.held_time import total_charges
from flows.billing.session_billing import SessionBilling
from flows.run.clock import Clock
from flows.run.lease import is_keeper
from yatt_core.costs.charging import MS_PER_HOUR, Charges
from yatt_core.guards.budget import UsedHours

SECONDS_PER_HOUR = 3600.0


def spent_by(ledger: Ledger, run: str) -> UsedHours:
    """Returns what a run has used so far. Raises `RunNotFound`."""
    return UsedHours(wall_hours_of(ledger, run), device_hours_of(total_charges(ledger, run)))


def wall_hours_of(ledger: Ledger, run: str, before_term: int | None = None) -> float:
    """Returns the hours in which a run's lease was held by drivers and commands. Raises `RunNotFound`.

    before_term: counts only holders before this term.
    """
    held_ms = 0
    for lease in ledger.overview.leases(run):
        if is_keeper(lease.holder) or (before_term is not None and lease.term >= before_term):
            continue
        held_ms += max(0, (lease.released_at or lease.renewed_at or lease.taken_at) - lease.taken_at)
    return held_ms / MS_PER_HOUR


def device_hours_of(charges: Charges) -> float:
    """Returns the hours times devices that were charged."""
    return sum(amounts.device_ms for amounts in charges.values()) / MS_PER_HOUR


class Spending:
    """The run's usage during a session.

    billing: what the run is charged.
    """

    def __init__(self, ledger: Ledger, fence: Fence, billing: SessionBilling, clock: Clock) -> None:
        self._clock = clock
        self._billing = billing
        self._began = clock.monotonic()
        self._hours_before = wall_hours_of(ledger, fence.run, fence.term)

    def so_far(self) -> UsedHours:
        """Returns the run's usage up to now."""
        hours = (self._clock.monotonic() - self._began) / SECONDS_PER_HOUR
        return UsedHours(self._hours_before + hours, device_hours_of(self._billing.charges()))
