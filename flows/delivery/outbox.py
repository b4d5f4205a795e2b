"""Delivers the outbox from threads of their own, so that neither tracking nor telling people ever holds up training.

Rows are claimed under the session's term, sent in order, and marked; a row that was sent and not marked (a crash between) is
sent again with its own timestamp and changes nothing. While the tracker is away rows wait in the ledger. A row's id says which
branch it tells of: a branch that a rollback opened has a tracking run of its own, nested in the run's.
"""

from __future__ import annotations

import logging
import re
import threading
from itertools import groupby
from typing import Protocol

from db.core.engine import Fence
from db.core.errors import Fenced, LedgerError
from db.ledger import Ledger
from db.write.outbox import ClaimedRow
from flows.run.owner import owner_of
from flows.run.protocols import OutboxItem, Tracker
from yatt_core.errors import InfrastructureError, YattError
from yatt_core.logs import redact

log = logging.getLogger("yatt_core.outbox")
BATCH = 100
CREATION = "run"
POLL_SECONDS = 1.0
RETRY_SECONDS = 5.0


def row_id(run: str, branch: int, name: str) -> str:
    """The id of a row that tells of one branch; it says where the row goes, as that of an iteration's metrics does."""
    return f"{run}/b{branch}/{name}"


def row_ids(run: str, branch: int, name: str) -> list[str]:
    """The ids of rows that tell of a branch in the run's own tracking run, and in the branch's where that is another."""
    return [f"{run}/{name}"] if branch == 0 else [f"{run}/{name}", row_id(run, branch, name)]


def creation_id(run: str, branch: int) -> str:
    """The id of the row that creates a branch's tracking run; branch 0's is the run's own."""
    return f"{run}/run" if branch == 0 else row_id(run, branch, "run")


def branch_of(run: str, entry_id: str) -> int:
    """The branch whose tracking run a row goes to: the one in its id, else 0, the run's own."""
    named = re.match(rf"{re.escape(run)}/b(\d+)/", entry_id)
    return int(named[1]) if named else 0


def tracking_run(ledger: Ledger, run: str, branch: int) -> str | None:
    """The tracker's name for a branch's tracking run; none until it is created.

    A branch that never got one of its own (it is older than the nesting, or tracking was off) goes to the run's.
    """
    own = ledger.runs.find(run).mlflow_run_id
    return own if branch == 0 else ledger.outbox.external_id(creation_id(run, branch)) or own


def deliver_pending(ledger: Ledger, fence: Fence, tracker: Tracker, batch: int = BATCH) -> int:
    """Sends one batch of a run's undelivered rows; returns how many it was.

    A row that creates a tracking run goes alone, since others need what it makes; rows of several branches go one branch
    after the other. Raises what tracker and ledger raise; what a tracker that is away did not take is given back.
    """
    rows = ledger.outbox.claim(fence, batch)
    try:
        for _, group in groupby(rows, key=lambda row: _destination(fence.run, row)):
            _deliver(ledger, fence, tracker, list(group))
    except InfrastructureError:
        ledger.outbox.give_back(fence)
        raise
    return len(rows)


def _destination(run: str, row: ClaimedRow) -> tuple[int, str]:
    """What is sent together: the rows of one branch, and a creation alone."""
    return branch_of(run, row.id), row.id if row.kind == CREATION else ""


def _deliver(ledger: Ledger, fence: Fence, tracker: Tracker, rows: list[ClaimedRow]) -> None:
    """Sends rows of one destination and books them."""
    branch, creates = branch_of(fence.run, rows[0].id), rows[0].kind == CREATION
    # A branch's tracking run is nested in the run's own, which is nested in none.
    target = tracking_run(ledger, fence.run, 0 if creates else branch) if branch or not creates else None
    # Another ledger that the tracker serves may have a run of this name.
    told = {"owner": owner_of(ledger, fence.run)} if creates else {}
    items = [OutboxItem(row.id, fence.run, row.kind, {**row.payload, **told}, row.logged_at_ms, target) for row in rows]
    made = tracker.deliver(items)
    ids = [row.id for row in rows]
    if creates and branch == 0:
        ledger.runs.set_mlflow_run(fence, made[ids[0]])
    ledger.outbox.delivered(fence, ids, made.get(ids[0]))


class Deliverer(Protocol):
    """Delivers one kind of rows. longest_wait: between two tries while what it delivers to is away."""

    @property
    def name(self) -> str: ...
    @property
    def longest_wait(self) -> float: ...

    def deliver(self, ledger: Ledger, fence: Fence, last: bool) -> int:
        """Sends some of what is due; returns how many rows, 0 once nothing is. last: the session ends, all is due.

        Raises `InfrastructureError` with nothing lost, `Fenced`, and other errors behind which it has to start over.
        """
        ...

    def start_over(self, ledger: Ledger, fence: Fence) -> None:
        """Forgets what it had claimed and gives it back; behind an error nobody knows what of it the ledger has booked."""
        ...

    def waiting(self, ledger: Ledger, run: str) -> int:
        """Rows that are not delivered."""
        ...


class TrackerDeliverer:
    """Delivers to the tracker. batch: rows at a time."""

    name, longest_wait = "outbox", RETRY_SECONDS

    def __init__(self, tracker: Tracker, batch: int = BATCH) -> None:
        self._tracker, self._batch = tracker, batch

    def deliver(self, ledger: Ledger, fence: Fence, last: bool) -> int:
        """A batch, whether the session ends or not."""
        return deliver_pending(ledger, fence, self._tracker, self._batch)

    def start_over(self, ledger: Ledger, fence: Fence) -> None:
        """Claims anew what is not booked."""
        ledger.outbox.give_back(fence)

    def waiting(self, ledger: Ledger, run: str) -> int:
        """Rows that the tracker has not got."""
        return ledger.outbox.counts(run)[0]


class OutboxPump:
    """A delivering thread of a session."""

    def __init__(self, address: str, fence: Fence, deliverer: Deliverer) -> None:
        self._address, self._fence, self._deliverer = address, fence, deliverer
        self._ended = threading.Event()
        self._drained = threading.Event()
        self._thread = threading.Thread(target=self._pump, name=deliverer.name, daemon=True)

    def start(self) -> None:
        """Begins to deliver."""
        self._thread.start()

    def stop(self, drain_seconds: float) -> bool:
        """Delivers what is left, for so long at most; True if nothing stayed behind."""
        self._ended.set()
        self._thread.join(drain_seconds)
        return self._drained.is_set()

    def _pump(self) -> None:
        ledger, wait, unsure = Ledger.open(self._address, migrate=False), RETRY_SECONDS, False
        try:
            while True:
                last_round = self._ended.is_set()
                try:
                    if unsure:
                        self._deliverer.start_over(ledger, self._fence)
                        unsure = False
                    while self._deliverer.deliver(ledger, self._fence, last_round):
                        pass
                    waiting = self._deliverer.waiting(ledger, self._fence.run) if last_round else 0
                except Fenced:
                    return
                # Any error: what a service answers can break its client in ways that nobody foresaw, and the next try may find
                # another answer. A thread that ended here would deliver nothing for as long as the session goes on.
                except Exception as error:  # noqa: BLE001
                    unsure = unsure or not isinstance(error, InfrastructureError)
                    self._say(error)
                    if last_round:
                        return
                    self._ended.wait(wait)
                    wait = min(2 * wait, self._deliverer.longest_wait)
                    continue
                wait = RETRY_SECONDS
                if last_round:
                    if not waiting:  # else: rows that are claimed until the next term
                        self._drained.set()
                    return
                self._ended.wait(POLL_SECONDS)
        finally:
            ledger.close()

    def _say(self, error: Exception) -> None:
        log.warning("the outbox waits (%s): %s", self._deliverer.name, in_words(error), exc_info=not is_foreseen(error))


def is_foreseen(error: Exception) -> bool:
    """Whether it is an error of ours; what a service answers can break its client in ways that nobody foresaw."""
    return isinstance(error, YattError | LedgerError)


def in_words(error: Exception) -> str:
    """Why something was not delivered, without credentials."""
    return redact(f"{error}" if is_foreseen(error) else f"{type(error).__name__}: {error}")
