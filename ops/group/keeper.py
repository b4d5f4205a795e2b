"""The keeper: a member of the service group that sends MLflow and people what dead runs left in the outbox.

`python -m ops.group.keeper` consumes the ledger of the home, looks every few seconds for runs with undelivered rows and no
driver, and delivers them with the tracker that a resume would use. A run with a driver is left alone: its lease says so. A run
that fails is tried again after a delay that doubles; a try that takes the lease is made `LEASED_TRIES` times in vain at most.
`keeper.json` says which and why. SIGTERM ends it behind the batch at hand.
Beside it, flow runs of dead windows are closed (`ops.group.reaping`).
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from db.core.errors import Fenced, LeaseHeld, LedgerError, LedgerUnavailable
from db.ledger import Ledger
from flows.delivery.notifications import NotificationDeliverer
from flows.delivery.orphaned_outbox import BATCH, Trouble, deliver_dead, is_dead
from flows.delivery.outbox import Deliverer, TrackerDeliverer, in_words, is_foreseen
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.protocols import Tracker
from ops.group.keeper_state import Undelivered, write_undelivered
from ops.group.members import KEEPER_READY
from ops.group.reaping import start_reaping
from ops.integrations.apprise_notifier import AppriseNotifier
from ops.integrations.mlflow_tracker import MlflowTracker
from yatt_core.errors import FencedError, InfrastructureError
from yatt_core.logs import redact

ROUND_SECONDS = 5.0
LEASED_TRIES = 20
"""In vain in a row, at a run's rows for MLflow or for people, hours in all: each takes the lease, which its audit chain keeps."""
log = logging.getLogger("yatt.keeper")


class Keeper:
    """The rounds over the dead runs of one ledger. reachable: raises `InfrastructureError` while the tracker is away."""

    def __init__(self, home: Home, tracker: Tracker, reachable: Callable[[], None], ended: threading.Event) -> None:
        self._home, self._tracker, self._reachable, self._ended = home, tracker, reachable, ended
        self._troubles: dict[str, Trouble] = {}
        # Kept for as long as a run has rows: each knows who has taken what.
        self._notifiers: dict[str, AppriseNotifier] = {}
        self._refused: dict[str, dict[str, Trouble]] = {}
        self._told: list[Undelivered] | None = None

    def run(self) -> None:
        """Goes round until it is ended."""
        with Ledger.open(self._home.ledger, migrate=False) as ledger:
            log.info(KEEPER_READY)
            while not self._ended.is_set():
                try:
                    self.round(ledger)
                except LedgerError as error:
                    log.warning("the ledger: %s", redact(str(error)))
                self._ended.wait(ROUND_SECONDS)

    def round(self, ledger: Ledger) -> None:
        """Tries each dead run that is due once, then says what is left."""
        dead = [letters for letters in ledger.outbox.undelivered() if is_dead(letters)]
        due = [letters.run for letters in dead if self._trouble(letters.run).again_at <= time.monotonic()]
        self._troubles = {letters.run: self._trouble(letters.run) for letters in dead}
        self._notifiers = {run: notifier for run, notifier in self._notifiers.items() if run in self._troubles}
        self._refused = {run: refused for run, refused in self._refused.items() if run in self._troubles}
        for run in due:
            if not self._ended.is_set():
                self._try(ledger, run)
        self._tell(ledger)

    def _try(self, ledger: Ledger, run: str) -> None:
        sent, reasons = 0, list[str]()
        for notifications, send in ((False, self._send_to_tracker), (True, self._send_to_people)):
            if not ledger.outbox.counts(run, notifications=notifications)[0]:
                continue
            try:
                sent += send(ledger, run)
            except (LeaseHeld, Fenced, FencedError) as error:
                log.info("%s: has a driver again: %s", run, error)
                return
            except LedgerUnavailable:
                raise
            # Any error: what nobody foresaw is this run's trouble, and must not keep the others' rows.
            except Exception as error:
                if not is_foreseen(error):
                    log.exception("%s: unexpected", run)
                reasons.append(in_words(error))
        if sent:
            log.info("%s: delivered %d rows that its driver left", run, sent)
        if reasons or not sent:
            self._failed(run, "; ".join(reasons) or "none of its rows is of a kind that can be delivered here")
        else:
            self._troubles.pop(run, None)

    def _send_to_tracker(self, ledger: Ledger, run: str) -> int:
        self._reachable()  # before the lease is taken: a tracker that is away is no reason to write to the ledger
        return self._deliver(ledger, run, TrackerDeliverer(self._tracker, BATCH))

    def _send_to_people(self, ledger: Ledger, run: str) -> int:
        notify = current_spec(ledger, run).guards.notify
        notifier = self._notifiers.get(run) or AppriseNotifier.from_environment(notify)
        if notify is None or notifier is None:
            return 0
        self._notifiers[run] = notifier
        return self._deliver(ledger, run, NotificationDeliverer(notifier, notify))

    def _deliver(self, ledger: Ledger, run: str, deliverer: Deliverer) -> int:
        """Under the lease, unless that was in vain too often."""
        refused = self._refused.setdefault(run, {})
        before = refused.get(deliverer.name, Trouble())
        if before.failures >= LEASED_TRIES:
            tries = f"given up after {before.failures} tries, the run's next driver delivers them ({deliverer.name})"
            raise InfrastructureError(f"{tries}: {before.reason}")
        waiting = deliverer.waiting(ledger, run)
        try:
            sent = deliver_dead(self._home.ledger, ledger, run, deliverer)
        except (LeaseHeld, Fenced, FencedError, LedgerUnavailable):
            raise
        # Any error: whatever it was, the try has cost a lease.
        except Exception as error:
            in_vain = deliverer.waiting(ledger, run) >= waiting
            refused[deliverer.name] = (before if in_vain else Trouble()).failed(time.monotonic(), in_words(error))
            raise
        refused.pop(deliverer.name, None)
        return sent

    def _failed(self, run: str, reason: str) -> None:
        self._troubles[run] = self._trouble(run).failed(time.monotonic(), reason)
        log.warning("%s: could not be delivered (%d in a row): %s", run, self._troubles[run].failures, reason)

    def _trouble(self, run: str) -> Trouble:
        return self._troubles.get(run, Trouble())

    def _tell(self, ledger: Ledger) -> None:
        left = [
            Undelivered(
                letters.run, letters.rows, self._trouble(letters.run).failures, self._trouble(letters.run).reason
            )
            for letters in ledger.outbox.undelivered()
            if is_dead(letters)
        ]
        if left != self._told:
            write_undelivered(self._home.group, left)
            self._told = left


def main() -> int:
    """Keeps the home that the environment names until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    home = Home.locate()
    tracker = MlflowTracker(home.tracking_uri, home.artifacts)
    start_reaping(home, ended)
    Keeper(home, tracker, tracker.check_reachable, ended).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
