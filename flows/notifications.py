"""Tells people what a run's guards found and that it was paused or has failed: from the outbox, in messages that come seldom.

Consumes rows of kind `notification`, written in the transactions of the facts that they tell of. What has come up since the last
message goes into one, at most every so many seconds; a message that not everybody took is sent again to those who did not. Each
line carries the row's id, by which whoever reads it twice can tell.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from db.engine import Fence
from db.ledger import Ledger
from db.outbox import NOTIFICATION, ClaimedRow, OutboxEntry
from flows.protocols import Notification, Notifier
from yatt_core.logs import redact
from yatt_core.spec.guards import NotifySpec

log = logging.getLogger("yatt_core.outbox")
LONGEST_LIST = 20
"""Lines of a message; of more it tells the number."""
LONGEST_LINE = 500
LONGEST_WAIT = 300.0


def alarm_entry(body: Mapping[str, Any], at_ms: int) -> OutboxEntry:
    """The row that tells people of an alarm. body: as the ledger keeps it."""
    text = f"iteration {body['iteration']}, {body['rule']} ({body['action']}): {body['text']}"
    return OutboxEntry(body["id"], NOTIFICATION, {"text": text}, at_ms)


def state_entry(run: str, epoch: int, state: str, reason: str, at_ms: int) -> OutboxEntry:
    """The row that tells people what has become of a run."""
    return OutboxEntry(f"{run}/e{epoch}/now-{state}", NOTIFICATION, {"text": f"the run is {state}: {reason}"}, at_ms)


def message_of(run: str, rows: Sequence[ClaimedRow]) -> Notification:
    """One message of all of them, the oldest first; of very many the newest."""
    shown = rows[-LONGEST_LIST:]
    lines = [f"- {redact(str(row.payload['text']))[:LONGEST_LINE]} [{row.id}]" for row in shown]
    if len(rows) > len(shown):
        lines.insert(0, f"{len(rows) - len(shown)} earlier ones are not listed; see `yatt alarms {run}`")
    title = f"YATT: {run}, {len(rows)} new" if len(rows) > 1 else f"YATT: {run}"
    return Notification(f"{rows[0].id}..{rows[-1].id}", title, "\n".join(lines))


class NotificationDeliverer:
    """Sends what waits, once the interval since the last message is over, whoever sent that; at the end, at once."""

    name, longest_wait = "notifications", LONGEST_WAIT

    def __init__(self, notifier: Notifier, spec: NotifySpec) -> None:
        self._notifier, self._interval = notifier, spec.interval_seconds
        self._undelivered: list[ClaimedRow] = []

    def deliver(self, ledger: Ledger, fence: Fence, last: bool) -> int:
        """Sends one message; returns how many rows it told of. Raises what notifier and ledger raise."""
        if not last and not self._is_due(ledger, fence.run):
            return 0
        # A message that was tried before is tried again as it is, so that those who took it are known.
        rows = self._undelivered or ledger.outbox.claim(fence, notifications=True)
        if not rows:
            return 0
        self._undelivered = rows
        self._notifier.notify(message_of(fence.run, rows))
        ledger.outbox.delivered(fence, [row.id for row in rows])
        self._undelivered = []
        log.info("people were told of %d rows", len(rows))
        return len(rows)

    def waiting(self, ledger: Ledger, run: str) -> int:
        """Rows that nobody was told of yet."""
        return ledger.outbox.counts(run, notifications=True)[0]

    def _is_due(self, ledger: Ledger, run: str) -> bool:
        since = ledger.outbox.last_notified(run)
        return since is None or since >= self._interval
