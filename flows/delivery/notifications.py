"""Notifies people of guard alarms, and of a run that was paused or has failed.

Consumes outbox rows of kind `notification`, each written in the same transaction as the event it reports. Rows that
have accumulated since the last message are combined into one, sent at most once per `guards.notify.interval_seconds`.
A message that a recipient did not accept is sent again to that recipient alone, and does not delay the others. Each
line carries the row's id, so that duplicates can be recognised.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.outbox import NOTIFICATION, PEOPLE, ClaimedRow, OutboxEntry
from flows.run.protocols import Notice, Notifier
from yatt_core.counting import many
from yatt_core.errors import InfrastructureError
from yatt_core.logs import redact
from yatt_core.spec.sections.guards import NotifySpec

log = logging.getLogger("yatt_core.outbox")
LONGEST_LIST = 20
"""Maximum number of notices in a message; the number of omitted ones is given."""
LONGEST_LINE = 500
LONGEST_WAIT = 300.0
APPROVAL = "approval"
"""Key of the payload that names the question that a row is about."""


def alarm_entry(body: Mapping[str, Any], at_ms: int) -> OutboxEntry:
    """Returns the outbox row that notifies people of an alarm.

    body: the alarm as the ledger keeps it.
    """
    text = f"iteration {body['iteration']}, {body['rule']} ({body['action']}): {body['text']}"
    return OutboxEntry(body["id"], NOTIFICATION, {"text": text}, at_ms)


def state_entry(run: str, term: int, state: str, reason: str, at_ms: int) -> OutboxEntry:
    """Returns the outbox row that notifies people of a run's new state."""
    return news_entry(run=run, term=term, occasion=f"now-{state}", text=f"the run is {state}: {reason}", at_ms=at_ms)


def news_entry(run: str, term: int, occasion: str, text: str, at_ms: int) -> OutboxEntry:
    """Returns the outbox row that notifies people of something, once per session and occasion."""
    return OutboxEntry(f"{run}/t{term}/{occasion}", NOTIFICATION, {"text": text}, at_ms)


def approval_entry(run: str, key: str, question: str, at_ms: int) -> OutboxEntry:
    """Returns the outbox row that notifies people of a question.

    key: the question's name within its run; the message names the question's number and address once it is sent.
    """
    return OutboxEntry(f"{run}/approval/{key}", NOTIFICATION, {"text": question, APPROVAL: key}, at_ms)


@dataclass(frozen=True, slots=True)
class Notification:
    """A message to a recipient."""

    title: str
    body: str


def message_of(run: str, notices: Sequence[Notice]) -> Notification:
    """Combines notices into one message, oldest first; only the latest `LONGEST_LIST` are listed."""
    shown = notices[-LONGEST_LIST:]
    lines = [_line(notice) for notice in shown]
    if len(notices) > len(shown):
        lines.insert(0, f"{many(len(notices) - len(shown), 'earlier one')} omitted; see `yatt alarms {run}`")
    title = f"YATT: {run}, {len(notices)} new" if len(notices) > 1 else f"YATT: {run}"
    return Notification(title, "\n".join(lines))


def _line(notice: Notice) -> str:
    where = f" {notice.address}" if notice.address else ""
    return f"- {redact(notice.text)[:LONGEST_LINE]}{where} [{notice.key}]"


class NotificationDeliverer:
    """Sends pending rows once the interval since the last message has passed, or at once when a session ends.

    address: tells where to decide a question of a run, given its key (`flows.gates.links`).
    """

    name = "notifications"
    longest_wait = LONGEST_WAIT

    def __init__(
        self,
        notifier: Notifier,
        spec: NotifySpec,
        address: Callable[[Ledger, str, str], str] = lambda ledger, run, key: "",
    ) -> None:
        self._notifier = notifier
        self._interval = spec.interval_seconds
        self._address = address
        self._undelivered: list[ClaimedRow] = []
        self._newest_sent_at = -math.inf

    def deliver(self, ledger: Ledger, fence: Fence, last: bool) -> int:
        """Sends rows that are due or not accepted yet; returns how many all recipients have now accepted.

        Raises `InfrastructureError` as long as a recipient has not accepted some rows, and what the ledger raises.
        """
        if last or self._is_due(ledger, fence.run):
            while new := ledger.outbox.claim(fence, lane=PEOPLE):
                self._undelivered += new
                self._newest_sent_at = time.monotonic()
        if not self._undelivered:
            return 0
        told = self._notifier.notify(fence.run, [self._notice(ledger, fence.run, row) for row in self._undelivered])
        if told.taken:
            ledger.outbox.delivered(fence, sorted(told.taken))
            log.info("sent notifications for %d rows", len(told.taken))
        self._undelivered = [row for row in self._undelivered if row.id not in told.taken]
        if told.failures:
            raise InfrastructureError("; ".join(told.failures))
        return len(told.taken)

    def start_over(self, ledger: Ledger, fence: Fence) -> None:
        """Releases the rows that are not marked as delivered; the notifier knows who has accepted them."""
        self._undelivered = []
        ledger.outbox.give_back(fence, lane=PEOPLE)

    def waiting(self, ledger: Ledger, run: str) -> int:
        """Returns the number of rows that not all recipients have accepted."""
        return ledger.outbox.counts(run, lane=PEOPLE)[0]

    def cut(self) -> None:
        """Does nothing: a message that is sent again says so by its row's id."""

    def close(self) -> None:
        """Does nothing: each message stands alone."""

    def _notice(self, ledger: Ledger, run: str, row: ClaimedRow) -> Notice:
        key = row.payload.get(APPROVAL)
        return Notice(row.id, str(row.payload["text"]), "" if key is None else self._address(ledger, run, str(key)))

    def _is_due(self, ledger: Ledger, run: str) -> bool:
        """Returns True if the last message was long enough ago, according to both the ledger and this process."""
        since = ledger.outbox.last_notified(run)
        told = since is None or since >= self._interval
        return told and time.monotonic() - self._newest_sent_at >= self._interval
