"""Tells people what a run's guards found and that it was paused or has failed: from the outbox, in messages that come seldom.

Consumes rows of kind `notification`, written in the transactions of the facts that they tell of. What has come up since the last
message goes into one, at most every so many seconds; what somebody did not take is sent again to them alone, and keeps nothing
newer from the others. Each line carries the row's id, by which whoever reads it twice can tell.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.outbox import NOTIFICATION, ClaimedRow, OutboxEntry
from flows.run.protocols import Notice, Notifier
from yatt_core.errors import InfrastructureError
from yatt_core.logs import redact
from yatt_core.spec.sections.guards import NotifySpec

log = logging.getLogger("yatt_core.outbox")
LONGEST_LIST = 20
"""Lines of a message; of more it tells the number."""
LONGEST_LINE = 500
LONGEST_WAIT = 300.0


def alarm_entry(body: Mapping[str, Any], at_ms: int) -> OutboxEntry:
    """The row that tells people of an alarm. body: as the ledger keeps it."""
    text = f"iteration {body['iteration']}, {body['rule']} ({body['action']}): {body['text']}"
    return OutboxEntry(body["id"], NOTIFICATION, {"text": text}, at_ms)


def state_entry(run: str, term: int, state: str, reason: str, at_ms: int) -> OutboxEntry:
    """The row that tells people what has become of a run."""
    return OutboxEntry(f"{run}/t{term}/now-{state}", NOTIFICATION, {"text": f"the run is {state}: {reason}"}, at_ms)


@dataclass(frozen=True, slots=True)
class Message:
    """What somebody reads."""

    title: str
    body: str


def message_of(run: str, notices: Sequence[Notice]) -> Message:
    """One message of all of them, the oldest first; of very many the newest."""
    shown = notices[-LONGEST_LIST:]
    lines = [f"- {redact(notice.text)[:LONGEST_LINE]} [{notice.key}]" for notice in shown]
    if len(notices) > len(shown):
        lines.insert(0, f"{len(notices) - len(shown)} earlier ones are not listed; see `yatt alarms {run}`")
    title = f"YATT: {run}, {len(notices)} new" if len(notices) > 1 else f"YATT: {run}"
    return Message(title, "\n".join(lines))


class NotificationDeliverer:
    """Sends what waits, once the interval since the last message is over, whoever sent that; at the end, at once."""

    name, longest_wait = "notifications", LONGEST_WAIT

    def __init__(self, notifier: Notifier, spec: NotifySpec) -> None:
        self._notifier, self._interval = notifier, spec.interval_seconds
        self._undelivered: list[ClaimedRow] = []
        self._newest_sent_at = -math.inf

    def deliver(self, ledger: Ledger, fence: Fence, last: bool) -> int:
        """Sends what is due and what somebody has not taken; returns how many rows were told of to everybody.

        Raises `InfrastructureError` while somebody has not taken some, and what the ledger raises.
        """
        if last or self._is_due(ledger, fence.run):
            while new := ledger.outbox.claim(fence, notifications=True):
                self._undelivered += new
                self._newest_sent_at = time.monotonic()
        if not self._undelivered:
            return 0
        told = self._notifier.notify(fence.run, [Notice(row.id, str(row.payload["text"])) for row in self._undelivered])
        if told.taken:
            ledger.outbox.delivered(fence, sorted(told.taken))
            log.info("people were told of %d rows", len(told.taken))
        self._undelivered = [row for row in self._undelivered if row.id not in told.taken]
        if told.failures:
            raise InfrastructureError("; ".join(told.failures))
        return len(told.taken)

    def start_over(self, ledger: Ledger, fence: Fence) -> None:
        """Claims anew what is not booked; the notifier knows who has taken it."""
        self._undelivered = []
        ledger.outbox.give_back(fence, notifications=True)

    def waiting(self, ledger: Ledger, run: str) -> int:
        """Rows that not everybody was told of yet."""
        return ledger.outbox.counts(run, notifications=True)[0]

    def _is_due(self, ledger: Ledger, run: str) -> bool:
        """Whether the last message is long enough ago; one that not everybody took is known to this process alone."""
        since = ledger.outbox.last_notified(run)
        told = since is None or since >= self._interval
        return told and time.monotonic() - self._newest_sent_at >= self._interval
