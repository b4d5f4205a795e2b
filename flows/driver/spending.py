"""The hours and device hours that a run has used, over all its sessions and branches, including killed drivers.

Consumes the leases in the ledger (when they were taken, and when they were released or last renewed) and the number of
devices in each revision of the spec. Leases for the delivery of the outbox do not count. The current session is
measured by the driver's clock.
"""

from __future__ import annotations

from db.core.engine import Fence
from db.ledger import Ledger
from flows.run.clock import Clock
from flows.run.lease import is_keeper
from yatt_core.guards.budget import UsedHours
from yatt_core.spec import parse_spec

MS_PER_HOUR = 3_600_000
SECONDS_PER_HOUR = 3600.0


def spent_by(ledger: Ledger, run: str, before_term: int | None = None) -> UsedHours:
    """Returns what a run's lease holders have used so far. Raises `RunNotFound`.

    before_term: counts only holders before this term.
    """
    revisions = [ledger.runs.revision(run, n) for n in range(1, ledger.runs.revision(run).revision + 1)]
    spent = UsedHours(0.0, 0.0)
    for lease in ledger.overview.leases(run):
        if is_keeper(lease.holder) or (before_term is not None and lease.term >= before_term):
            continue
        hours = max(0, (lease.released_at or lease.renewed_at or lease.taken_at) - lease.taken_at) / MS_PER_HOUR
        in_force = [revision for revision in revisions if revision.created_at <= lease.taken_at] or revisions[:1]
        spec = parse_spec(dict(in_force[-1].spec), f"revision {in_force[-1].revision} of the spec of run {run}")
        spent += UsedHours(hours, hours * spec.devices)
    return spent


class Spending:
    """The run's usage during a session.

    devices: the number of devices that the run uses.
    """

    def __init__(self, ledger: Ledger, fence: Fence, devices: int, clock: Clock) -> None:
        self._clock = clock
        self._devices = devices
        self._began = clock.monotonic()
        self._before = spent_by(ledger, fence.run, fence.term)

    def so_far(self) -> UsedHours:
        """Returns the run's usage up to now."""
        hours = (self._clock.monotonic() - self._began) / SECONDS_PER_HOUR
        return self._before + UsedHours(hours, hours * self._devices)
