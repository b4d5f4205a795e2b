"""The driver's threads: one renews the lease, two tell supervisor and actors that it lives, others deliver the outbox.

Each tracker has a thread of its own, and so have notifications.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from db.ledger import Ledger
from flows.delivery.notifications import NotificationDeliverer
from flows.delivery.outbox import OutboxPump, TrackerDeliverer
from flows.driver.context import RunContext
from flows.gates.links import addresses
from flows.run.lease import LeaseKeeper
from flows.run.protocols import Notifier, Tracker
from flows.run.shared_cluster import NO_TERM, given_cluster
from yatt_core.cluster.driver_signs import DriverBeat
from yatt_core.supervisor.client import Heartbeat

log = logging.getLogger("yatt_core.flow")
OUTBOX_DRAIN_SECONDS, NOTIFICATION_DRAIN_SECONDS = 60.0, 20.0
TRACKER_HOLD_SECONDS = 60.0
"""How long trackers may hear nothing while a session starts. Their clients take seconds of a core to import, which services and
actors need then."""
LEDGER_PATIENCE_SECONDS = 15.0
"""How long the main loop waits for a ledger that has not confirmed the lease, before it counts as away."""
BETWEEN_PHASES_SECONDS = 300.0
"""Time that the main loop may spend between phases before it counts as hung."""


class DriverThreads:
    """Starts and ends the threads of one driver.

    beat: called in the lease thread at each renewal, with this thread's connection to the ledger.
    """

    def __init__(
        self,
        context: RunContext,
        trackers: Mapping[str, Tracker],
        notifier: Notifier | None,
        beat: Callable[[Ledger], None],
    ) -> None:
        ledger, fence, recovery = context.home.ledger, context.fence, context.spec.recovery
        notify = context.spec.guards.notify
        address = addresses(context.home, context.pages, context.spec.gates)
        deliverer = NotificationDeliverer(notifier, notify, address) if notifier and notify else None
        self._observer, self._folder, self._fence = context.observer, context.folder, fence
        life = recovery.lease_seconds
        self._lease = LeaseKeeper(ledger, fence, life, LEDGER_PATIENCE_SECONDS, beat, on_loss=self._cut)
        self._heartbeat = ExitStack()
        self._trackers = {
            name: OutboxPump(ledger, fence, TrackerDeliverer(tracker, lane=name), TRACKER_HOLD_SECONDS)
            for name, tracker in trackers.items()
        }
        self._notifications = OutboxPump(ledger, fence, deliverer) if deliverer else None

    def start(self) -> None:
        """Starts all threads; the caller must end them."""
        self._lease.start()
        self._heartbeat.enter_context(Heartbeat(self._folder, self._fence.term))
        if (cluster := given_cluster()) is not None:
            self._heartbeat.enter_context(Heartbeat(cluster, NO_TERM))
        self._heartbeat.enter_context(DriverBeat(self._fence.term))
        for pump in filter(None, (*self._trackers.values(), self._notifications)):
            pump.start()

    def deliver(self) -> None:
        """Lets trackers hear of the run, now that its actors are ready; may be repeated."""
        for pump in self._trackers.values():
            pump.release()

    def check(self) -> None:
        """Raises `FencedError` if this driver may no longer act, and `LedgerUnavailable` if the ledger does not say."""
        self._lease.check()

    def allow(self, seconds: float, work: str) -> None:
        """Allows the main loop this many seconds for some work; if it takes longer, its lease expires."""
        self._lease.allow(seconds + BETWEEN_PHASES_SECONDS, work)

    def extend(self, seconds: float) -> None:
        """Adds to the time that the main loop may take for its current work."""
        self._lease.extend(seconds)

    def drain(self) -> None:
        """Delivers the rest of the outbox to all destinations at once, for at most `OUTBOX_DRAIN_SECONDS`."""
        pumps = [*self._trackers.values(), *([self._notifications] if self._notifications else [])]
        for pump in pumps:
            pump.finish()
        if not self._lease.is_valid:
            self._cut()
        began = time.monotonic()

        def drained(pump: OutboxPump, seconds: float) -> bool:
            return pump.join(max(0.0, began + seconds - time.monotonic()))

        if self._notifications and not drained(self._notifications, NOTIFICATION_DRAIN_SECONDS):
            self._observer.warned("not all alarms could be sent; the rest wait in the ledger for the next resume")
        for name, pump in self._trackers.items():
            if not drained(pump, OUTBOX_DRAIN_SECONDS):
                self._observer.warned(
                    f"{name} has not received everything yet; the rest waits in the ledger for the next resume"
                )
        self._cut()

    def _cut(self) -> None:
        """Ends all delivery to trackers: the rest is up to whoever takes the lease, and must not arrive twice."""
        for pump in self._trackers.values():
            pump.cut()

    def end(self) -> None:
        """Ends the signs of life and the renewal of the lease."""
        self._heartbeat.close()
        self._lease.stop()
