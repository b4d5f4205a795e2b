"""Delivers the outbox to the tracker from a thread of its own, so that tracking never holds up training.

Rows are claimed under the segment's epoch, sent in order, and marked; a row that was sent and not marked (a crash between) is
sent again with its own timestamp and changes nothing. While the tracker is away rows wait in the ledger.
"""

from __future__ import annotations

import logging
import threading

from db.engine import Fence
from db.errors import Fenced, LedgerUnavailable
from db.ledger import Ledger
from flows.protocols import OutboxItem, Tracker
from yatt_core.errors import InfrastructureError

log = logging.getLogger("yatt_core.outbox")
BATCH = 100
POLL_SECONDS = 1.0
RETRY_SECONDS = 5.0


def deliver_pending(ledger: Ledger, fence: Fence, tracker: Tracker) -> int:
    """Sends one batch of a run's undelivered rows; returns how many it was.

    The row that creates the tracking run goes alone, since all others need what it makes. Raises what tracker and ledger
    raise, with the rows given back where the ledger takes them.
    """
    tracking_run = ledger.runs.find(fence.run).mlflow_run_id
    rows = ledger.outbox.claim(fence, BATCH if tracking_run else 1)
    if not rows:
        return 0
    ids = [row.id for row in rows]
    items = [OutboxItem(row.id, fence.run, row.kind, row.payload, row.logged_at_ms, tracking_run) for row in rows]
    try:
        made = tracker.deliver(items)
        if not tracking_run:
            ledger.runs.set_mlflow_run(fence, made[ids[0]])
        ledger.outbox.delivered(fence, ids, made.get(ids[0]))
    except (InfrastructureError, LedgerUnavailable):
        ledger.outbox.give_back(fence, ids)
        raise
    return len(rows)


class OutboxPump:
    """The delivering thread of a segment."""

    def __init__(self, address: str, fence: Fence, tracker: Tracker) -> None:
        self._address, self._fence, self._tracker = address, fence, tracker
        self._ended = threading.Event()
        self._drained = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="outbox", daemon=True)

    def start(self) -> None:
        """Begins to deliver."""
        self._thread.start()

    def stop(self, drain_seconds: float) -> bool:
        """Delivers what is left, for so long at most; True if nothing stayed behind."""
        self._ended.set()
        self._thread.join(drain_seconds)
        return self._drained.is_set()

    def _pump(self) -> None:
        ledger = Ledger.open(self._address, migrate=False)
        try:
            while True:
                last_round = self._ended.is_set()
                try:
                    while deliver_pending(ledger, self._fence, self._tracker):
                        pass
                    waiting, _ = ledger.outbox.counts(self._fence.run) if last_round else (0, 0)
                except Fenced:
                    return
                except (InfrastructureError, LedgerUnavailable) as error:
                    log.warning("the outbox waits: %s", error)
                    if last_round:
                        return
                    self._ended.wait(RETRY_SECONDS)
                    continue
                if last_round:
                    if (
                        not waiting
                    ):  # else: rows that a failing ledger did not take back are claimed until the next epoch
                        self._drained.set()
                    return
                self._ended.wait(POLL_SECONDS)
        finally:
            ledger.close()
