"""What a run has used up, over all of its sessions and branches, drivers that were killed included. Delivering uses up nothing.

Consumes the leases in the ledger (taken when, given back or last renewed when), and the devices that each revision of the spec
asks for. Produces hours. The driver's own session goes by its clock.
"""

from __future__ import annotations

from db.core.engine import Fence
from db.ledger import Ledger
from flows.run.clock import Clock
from flows.run.lease import is_keeper
from yatt_core.guards.budget import Spent
from yatt_core.spec import parse_spec

MS_PER_HOUR, SECONDS_PER_HOUR = 3_600_000, 3600.0


def spent_by(ledger: Ledger, run: str, before_term: int | None = None) -> Spent:
    """What a run's holders have used up so far, or those before a term. Raises `RunNotFound`."""
    revisions = [ledger.runs.revision(run, n) for n in range(1, ledger.runs.revision(run).revision + 1)]
    spent = Spent(0.0, 0.0)
    for lease in ledger.overview.leases(run):
        if is_keeper(lease.holder) or (before_term is not None and lease.term >= before_term):
            continue
        hours = max(0, (lease.released_at or lease.renewed_at or lease.taken_at) - lease.taken_at) / MS_PER_HOUR
        in_force = [revision for revision in revisions if revision.created_at <= lease.taken_at] or revisions[:1]
        spec = parse_spec(dict(in_force[-1].spec), f"revision {in_force[-1].revision} of the spec of run {run}")
        spent += Spent(hours, hours * spec.devices)
    return spent


class Spending:
    """What the run has used up while a session goes on. devices: that it asks for."""

    def __init__(self, ledger: Ledger, fence: Fence, devices: int, clock: Clock) -> None:
        self._clock, self._devices, self._began = clock, devices, clock.monotonic()
        self._before = spent_by(ledger, fence.run, fence.term)

    def so_far(self) -> Spent:
        """Up to now."""
        hours = (self._clock.monotonic() - self._began) / SECONDS_PER_HOUR
        return self._before + Spent(hours, hours * self._devices)
