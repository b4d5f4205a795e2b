"""Delivers the outbox in separate threads, so that neither tracking nor notifications ever hold up training.

Rows are claimed under the session's term, sent in order, and marked as delivered. A row that was sent but not marked
(because of a crash in between) is sent again with its original timestamp, which changes nothing. While the tracker is
unreachable, rows wait in the ledger. A row's id names its branch: a branch that a rollback opened has its own
tracking run, nested in the run's.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from itertools import groupby
from typing import Protocol

from db.core.engine import Fence
from db.core.errors import Fenced, LedgerError
from db.ledger import Ledger
from db.write.outbox import CREATION, MLFLOW, ClaimedRow, OutboxEntry, lane_id
from flows.run.owner import owner_of
from flows.run.protocols import OutboxItem, Tracker
from flows.run.trackers import for_trackers
from yatt_core.errors import InfrastructureError, RefusedRowError, YattError
from yatt_core.logs import redact
from yatt_core.printable import printable
from yatt_core.spec import RunSpec

log = logging.getLogger("yatt_core.outbox")
BATCH = 100
POLL_SECONDS = 5.0
"""Between two deliveries. Each has a cost of its own, such as the newest values that MLflow keeps of all metrics, so that several
short iterations are sent together."""
RETRY_SECONDS = 5.0
LONGEST_REASON = 500
"""Characters of the reason of a refusal that are kept."""


def row_id(run: str, branch: int, name: str) -> str:
    """Returns the id of a row for one branch; the branch in the id determines the row's tracking run."""
    return f"{run}/b{branch}/{name}"


def row_ids(run: str, branch: int, name: str) -> list[str]:
    """Returns the ids of the same row for both of its destinations: the run's tracking run and the branch's own."""
    return [f"{run}/{name}"] if branch == 0 else [f"{run}/{name}", row_id(run, branch, name)]


def revision_entries(run: str, branch: int, number: int, spec: RunSpec) -> list[OutboxEntry]:
    """Returns the outbox rows of a revision: tags, and the spec as an artifact, since tracked params are immutable."""
    if not spec.tracking.enabled:
        return []
    now = int(time.time() * 1000)
    name = f"revision-{number}"
    text = json.dumps(spec.model_dump(mode="json"), indent=1)
    tags = {"yatt.spec_revision": str(number), "yatt.spec_digest": spec.digest}
    entries = [
        entry
        for key in row_ids(run, branch, name)
        for entry in (
            OutboxEntry(f"{key}/tags", "tags", tags, now),
            OutboxEntry(f"{key}/spec", "artifact", {"name": f"spec-{number}.json", "text": text}, now),
        )
    ]
    return for_trackers(spec, entries)


def creation_id(run: str, branch: int) -> str:
    """Returns the id of the row that creates a branch's tracking run; for branch 0, this is the run's tracking run."""
    return f"{run}/run" if branch == 0 else row_id(run, branch, "run")


def branch_of(run: str, entry_id: str) -> int:
    """Returns the branch to whose tracking run a row goes: the branch in the row's id, else 0."""
    named = re.match(rf"{re.escape(run)}/b(\d+)/", entry_id)
    return int(named[1]) if named else 0


def tracking_run(ledger: Ledger, run: str, branch: int, lane: str = MLFLOW) -> str | None:
    """Returns the tracker's id of a branch's tracking run; None until it is created.

    A branch without a tracking run of its own (because tracking was off when it was opened) uses the run's.
    """
    if lane == MLFLOW:
        place = mlflow_place(ledger, run, branch)
        return None if place is None else run_in(place)
    own = ledger.outbox.external_id(lane_id(creation_id(run, 0), lane))
    return own if branch == 0 else ledger.outbox.external_id(lane_id(creation_id(run, branch), lane)) or own


def mlflow_place(ledger: Ledger, run: str, branch: int) -> str | None:
    """Returns `EXPERIMENT/RUN`, by MLflow's ids, for a branch's MLflow run, or that of the run; None until it is created."""
    own = ledger.outbox.external_id(creation_id(run, branch)) if branch else None
    return own or ledger.outbox.external_id(creation_id(run, 0)) or ledger.runs.find(run).mlflow_run_id


def run_in(place: str) -> str:
    """Returns MLflow's id of a run from `EXPERIMENT/RUN`."""
    return place.rpartition("/")[2]


def deliver_pending(ledger: Ledger, fence: Fence, tracker: Tracker, batch: int = BATCH, lane: str = MLFLOW) -> int:
    """Sends one batch of a run's undelivered rows for one tracker; returns the size of the batch.

    A row that creates a tracking run is sent alone, since others need its id; rows of several branches are sent
    branch by branch. A row that the tracker refuses for what it says is recorded as refused and holds up no other; one that
    creates a tracking run is sent again, since others need its id. Raises what tracker and ledger raise; rows that an
    unreachable tracker did not accept are released.
    """
    rows = ledger.outbox.claim(fence, batch, lane)
    try:
        for _, group in groupby(rows, key=lambda row: _destination(fence.run, row)):
            _deliver_unrefused(ledger=ledger, fence=fence, tracker=tracker, rows=list(group), lane=lane)
    except InfrastructureError:
        ledger.outbox.give_back(fence, lane)
        raise
    return len(rows)


def _destination(run: str, row: ClaimedRow) -> tuple[int, str]:
    """Returns the key that groups rows to be sent together: one branch's, except that a creation is sent alone."""
    return branch_of(run, row.id), row.id if row.kind == CREATION else ""


def _deliver_unrefused(ledger: Ledger, fence: Fence, tracker: Tracker, rows: list[ClaimedRow], lane: str) -> None:
    """Delivers rows of one destination; if one is refused, each alone, so that the refused ones are found."""
    try:
        _deliver(ledger=ledger, fence=fence, tracker=tracker, rows=rows, lane=lane)
    except RefusedRowError as error:
        if rows[0].kind == CREATION:
            raise
        if len(rows) == 1:
            reason = printable(redact(str(error)))[:LONGEST_REASON]
            log.warning("%s refuses the row %s for good; others are sent: %s", lane, rows[0].id, reason)
            ledger.outbox.refused(fence, rows[0].id, reason)
            return
        for row in rows:
            _deliver_unrefused(ledger=ledger, fence=fence, tracker=tracker, rows=[row], lane=lane)


def _deliver(ledger: Ledger, fence: Fence, tracker: Tracker, rows: list[ClaimedRow], lane: str) -> None:
    """Sends rows of one destination and marks them as delivered."""
    branch = branch_of(fence.run, rows[0].id)
    creates = rows[0].kind == CREATION
    # A branch's tracking run is nested in the run's own, which is at the top level.
    target = tracking_run(ledger, fence.run, 0 if creates else branch, lane) if branch or not creates else None
    # A run of another ledger may have the same name in this tracker.
    told = {"owner": owner_of(ledger, fence.run)} if creates else {}
    items = [
        OutboxItem(
            key=row.id,
            run=fence.run,
            kind=row.kind,
            body={**row.payload, **told},
            at_ms=row.logged_at_ms,
            tracking_run=target,
        )
        for row in rows
    ]
    made = tracker.deliver(items)
    ids = [row.id for row in rows]
    if creates and branch == 0 and lane == MLFLOW:
        ledger.runs.set_mlflow_run(fence, run_in(made[ids[0]]))
    ledger.outbox.delivered(fence, ids, made.get(ids[0]))


class Deliverer(Protocol):
    """Delivers one kind of rows.

    longest_wait: maximum seconds between two attempts while the destination is unreachable.
    """

    @property
    def name(self) -> str: ...
    @property
    def longest_wait(self) -> float: ...

    def deliver(self, ledger: Ledger, fence: Fence, last: bool) -> int:
        """Sends some of the rows that are due; returns how many, 0 if there are none left.

        last: the session is ending, so all rows are due.

        Raises `InfrastructureError` without losing rows, `Fenced`, and other errors, after which `start_over` is
        needed.
        """
        ...

    def start_over(self, ledger: Ledger, fence: Fence) -> None:
        """Releases all claimed rows after an error that leaves it unknown which of them the ledger has marked."""
        ...

    def waiting(self, ledger: Ledger, run: str) -> int:
        """Returns the number of undelivered rows."""
        ...

    def cut(self) -> None:
        """Ends every delivery at once, from another thread; what has not arrived yet never does."""
        ...

    def close(self) -> None:
        """Ends what is open at the destination, when no more rows follow from this process."""
        ...


class TrackerDeliverer:
    """Delivers rows to one tracker.

    batch: number of rows at a time.
    lane: the tracker's name.
    """

    longest_wait = RETRY_SECONDS

    def __init__(self, tracker: Tracker, batch: int = BATCH, lane: str = MLFLOW) -> None:
        self._tracker = tracker
        self._batch = batch
        self._lane = lane

    @property
    def name(self) -> str:
        """The tracker's name."""
        return self._lane

    def deliver(self, ledger: Ledger, fence: Fence, last: bool) -> int:
        """Sends one batch, whether or not the session is ending."""
        return deliver_pending(ledger=ledger, fence=fence, tracker=self._tracker, batch=self._batch, lane=self._lane)

    def start_over(self, ledger: Ledger, fence: Fence) -> None:
        """Releases the claimed rows that are not marked as delivered."""
        ledger.outbox.give_back(fence, self._lane)

    def waiting(self, ledger: Ledger, run: str) -> int:
        """Returns the number of rows that the tracker does not have yet."""
        return ledger.outbox.counts(run, self._lane)[0]

    def cut(self) -> None:
        """Cuts the tracker off."""
        self._tracker.cut()

    def close(self) -> None:
        """Closes the tracker."""
        self._tracker.close()


class OutboxPump:
    """A thread of a session that delivers the outbox.

    hold_seconds: how long the first delivery waits for `release`.
    """

    def __init__(self, address: str, fence: Fence, deliverer: Deliverer, hold_seconds: float = 0.0) -> None:
        self._address = address
        self._fence = fence
        self._deliverer = deliverer
        self._hold_seconds = hold_seconds
        self._released = threading.Event()
        self._ended = threading.Event()
        self._cut = threading.Event()
        self._drained = threading.Event()
        self._thread = threading.Thread(target=self._pump, name=deliverer.name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def release(self) -> None:
        """Lets the first delivery begin; may be repeated."""
        self._released.set()

    def finish(self) -> None:
        """Tells the thread to deliver the remaining rows and to end."""
        self._ended.set()
        self._released.set()

    def cut(self) -> None:
        """Ends the delivery at once, because this session's lease is lost or about to be released."""
        self._ended.set()
        self._cut.set()
        self._released.set()
        if self._thread.is_alive():
            self._deliverer.cut()

    def join(self, seconds: float) -> bool:
        """Waits up to `seconds` for the thread to end; returns True if no rows are left."""
        self._thread.join(seconds)
        return self._drained.is_set()

    def stop(self, drain_seconds: float) -> bool:
        """Delivers the remaining rows for at most `drain_seconds`; returns True if none are left."""
        self.finish()
        return self.join(drain_seconds)

    def _pump(self) -> None:
        ledger: Ledger | None = None
        wait = RETRY_SECONDS
        unsure = False
        try:
            self._released.wait(self._hold_seconds)
            while True:
                last_round = self._ended.is_set()
                try:
                    if ledger is None:
                        ledger = Ledger.open(self._address, migrate=False)
                    if unsure:
                        self._deliverer.start_over(ledger, self._fence)
                        unsure = False
                    while not self._cut.is_set() and self._deliverer.deliver(ledger, self._fence, last_round):
                        pass
                    waiting = self._deliverer.waiting(ledger, self._fence.run) if last_round else 0
                except Fenced:
                    return
                # Any error: a service's answer can break its client in unforeseen ways, and the next attempt may
                # succeed. If the thread ended here, nothing would be delivered for the rest of the session.
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
                    if not waiting:  # else some rows remain claimed until the next term
                        self._drained.set()
                    return
                self._ended.wait(POLL_SECONDS)
        finally:
            if ledger is not None:
                ledger.close()
            self._deliverer.close()

    def _say(self, error: Exception) -> None:
        log.warning("the outbox waits (%s): %s", self._deliverer.name, in_words(error), exc_info=not is_foreseen(error))


def is_foreseen(error: Exception) -> bool:
    """Returns True for YATT's own errors; a service's answer can break its client in unforeseen ways."""
    return isinstance(error, YattError | LedgerError)


def in_words(error: Exception) -> str:
    """Describes a failed delivery, without credentials."""
    return redact(f"{error}" if is_foreseen(error) else f"{type(error).__name__}: {error}")
