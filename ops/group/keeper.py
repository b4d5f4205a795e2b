"""The keeper: the group member that delivers rows which dead runs left in the outbox, to MLflow and to people.

`python -m ops.group.keeper` consumes the ledger of the home. Every few seconds, it looks for runs with
undelivered rows and no driver, and delivers the rows with the tracker that a resume would use. It ignores runs
whose lease a driver holds. A failed delivery is retried after a delay that doubles each time; after
`LEASED_TRIES` consecutive attempts that took the lease and failed, the keeper gives up on the rows.
`keeper.json` lists the affected runs and the reasons. SIGTERM stops the keeper after the current batch. In
addition, the keeper closes the flow runs of dead windows (`ops.group.reaping`).
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
from db.write.outbox import MLFLOW, PEOPLE
from flows.delivery.notifications import NotificationDeliverer
from flows.delivery.orphaned_outbox import BATCH, DeliveryBackoff, deliver_dead, is_dead, lost_runs, tell_lost
from flows.delivery.outbox import Deliverer, TrackerDeliverer, in_words, is_foreseen
from flows.gates.links import addresses
from flows.gates.promotions import runs_to_settle, settle
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.protocols import Tracker
from ops.group.keeper_state import UndeliveredRows, write_undelivered
from ops.group.members import KEEPER_READY
from ops.group.pages import live_pages
from ops.group.reaping import start_reaping
from ops.integrations.apprise_notifier import AppriseNotifier
from ops.integrations.mlflow_tracker import MlflowTracker
from ops.integrations.trackers import tracker_of
from yatt_core.errors import FencedError, InfrastructureError, YattError
from yatt_core.logs import redact

ROUND_SECONDS = 5.0
LEASED_TRIES = 20
"""Maximum number of failed attempts in a row, over some hours, to deliver a run's rows to MLflow or to people.

Each attempt takes the lease, which the audit chain records.
"""
log = logging.getLogger("yatt.keeper")


class Keeper:
    """Delivers the rows of the dead runs of one ledger, in rounds.

    reachable: raises `InfrastructureError` while the tracker is unreachable.
    """

    def __init__(self, home: Home, tracker: Tracker, reachable: Callable[[], None], ended: threading.Event) -> None:
        self._home = home
        self._tracker = tracker
        self._reachable = reachable
        self._ended = ended
        self._troubles: dict[str, DeliveryBackoff] = {}
        # Kept while a run has rows: a notifier remembers which address has received what.
        self._notifiers: dict[str, AppriseNotifier] = {}
        self._refused: dict[str, dict[str, DeliveryBackoff]] = {}
        self._told: list[UndeliveredRows] | None = None

    def run(self) -> None:
        """Repeats its round until it is told to stop."""
        with Ledger.open(self._home.ledger, migrate=False) as ledger:
            log.info(KEEPER_READY)
            while not self._ended.is_set():
                try:
                    self.round(ledger)
                except LedgerError as error:
                    log.warning("the ledger: %s", redact(str(error)))
                self._ended.wait(ROUND_SECONDS)

    def round(self, ledger: Ledger) -> None:
        """Tells the tracker of lost drivers, tries once to deliver the rows of each dead run that is due, and reports."""
        for approval in ledger.approvals.take_defaults():
            log.info("approval %d of %s: %s by its deadline", approval.id, approval.subject, approval.decision)
        for run in runs_to_settle(ledger):
            self._guarded(settle, ledger, run)
        for run in lost_runs(ledger):
            self._guarded(tell_lost, ledger, run)
        dead = [pending for pending in ledger.outbox.undelivered() if is_dead(pending)]
        due = [pending.run for pending in dead if self._trouble(pending.run).again_at <= time.monotonic()]
        self._troubles = {pending.run: self._trouble(pending.run) for pending in dead}
        self._notifiers = {run: notifier for run, notifier in self._notifiers.items() if run in self._troubles}
        self._refused = {run: refused for run, refused in self._refused.items() if run in self._troubles}
        for run in due:
            if not self._ended.is_set():
                self._try(ledger, run)
        self._tell(ledger)

    def _guarded(self, work: Callable[[Ledger, str], object], ledger: Ledger, run: str) -> None:
        """Does some work for a run; what is wrong with one run must not hold up the others."""
        try:
            work(ledger, run)
        except (LeaseHeld, Fenced) as error:
            log.info("%s: it has a driver again: %s", run, error)
        except YattError as error:
            log.warning("%s: %s", run, redact(str(error)))

    def _try(self, ledger: Ledger, run: str) -> None:
        sent = 0
        reasons = list[str]()
        for lane in ledger.outbox.lanes(run):
            try:
                sent += self._send_to_people(ledger, run) if lane == PEOPLE else self._send_to(lane, ledger, run)
            except (LeaseHeld, Fenced, FencedError) as error:
                log.info("%s: it has a driver again: %s", run, error)
                return
            except LedgerUnavailable:
                raise
            # Any error, because an unexpected one must not hold up the rows of other runs.
            except Exception as error:
                if not is_foreseen(error):
                    log.exception("%s: unexpected error", run)
                reasons.append(in_words(error))
        if sent:
            log.info("%s: delivered %d rows that its driver left behind", run, sent)
        if reasons or not sent:
            self._failed(run, "; ".join(reasons) or "none of its rows has a kind that can be delivered here")
        else:
            self._troubles.pop(run, None)

    def _send_to(self, lane: str, ledger: Ledger, run: str) -> int:
        if lane == MLFLOW:
            self._reachable()  # before taking the lease, which writes to the ledger
            return self._deliver(ledger, run, TrackerDeliverer(self._tracker, BATCH))
        tracker = tracker_of(lane, self._home, current_spec(ledger, run))
        return self._deliver(ledger, run, TrackerDeliverer(tracker, BATCH, lane))

    def _send_to_people(self, ledger: Ledger, run: str) -> int:
        spec = current_spec(ledger, run)
        notify = spec.guards.notify
        notifier = self._notifiers.get(run) or AppriseNotifier.from_environment(notify)
        if notify is None or notifier is None:
            return 0
        self._notifiers[run] = notifier
        address = addresses(self._home, live_pages(self._home), spec.gates)
        return self._deliver(ledger, run, NotificationDeliverer(notifier, notify, address))

    def _deliver(self, ledger: Ledger, run: str, deliverer: Deliverer) -> int:
        """Delivers under the lease, unless too many attempts have failed."""
        refused = self._refused.setdefault(run, {})
        before = refused.get(deliverer.name, DeliveryBackoff())
        if before.failures >= LEASED_TRIES:
            tries = f"gave up after {before.failures} attempts; the run's next driver delivers them ({deliverer.name})"
            raise InfrastructureError(f"{tries}: {before.reason}")
        waiting = deliverer.waiting(ledger, run)
        try:
            sent = deliver_dead(ledger, run, deliverer)
        except (LeaseHeld, Fenced, FencedError, LedgerUnavailable):
            raise
        # Any error counts as a failed attempt, because the attempt has taken the lease in every case.
        except Exception as error:
            in_vain = deliverer.waiting(ledger, run) >= waiting
            refused[deliverer.name] = (before if in_vain else DeliveryBackoff()).failed(
                time.monotonic(), in_words(error)
            )
            raise
        refused.pop(deliverer.name, None)
        return sent

    def _failed(self, run: str, reason: str) -> None:
        self._troubles[run] = self._trouble(run).failed(time.monotonic(), reason)
        log.warning("%s: delivery failed (%d in a row): %s", run, self._troubles[run].failures, reason)

    def _trouble(self, run: str) -> DeliveryBackoff:
        return self._troubles.get(run, DeliveryBackoff())

    def _tell(self, ledger: Ledger) -> None:
        left = [
            UndeliveredRows(
                pending.run, pending.rows, self._trouble(pending.run).failures, self._trouble(pending.run).reason
            )
            for pending in ledger.outbox.undelivered()
            if is_dead(pending)
        ]
        if left != self._told:
            write_undelivered(self._home.group, left)
            self._told = left


def main() -> int:
    """Serves the home that the environment names until SIGTERM."""
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
