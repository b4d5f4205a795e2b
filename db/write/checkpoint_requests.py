"""Requests for a checkpoint of a driven run: durable, and met once.

Consumes requests of operators and, from the driver, the checkpoint that met one. Both are links of the audit chain, so a
request outlives the driver that it was made of; the next driver finds it pending.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from db.core.engine import Database, Fence
from db.core.made_once import given, matching
from db.core.models import Event
from db.write.events import append, lock_run, signature

REQUESTED = "checkpoint_requested"
MET = "checkpoint_request_met"


# Made once: each iteration asks.
_NEWEST = (
    select(Event.seq, Event.at, Event.body).where(*matching(Event, "run", "kind")).order_by(Event.seq.desc()).limit(1)
)


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request that no checkpoint has met yet.

    seq: its link of the run's audit chain, which identifies it.
    at: milliseconds since 1970.
    iteration: the run's last commit at that time; -1 before the first.
    """

    run: str
    seq: int
    at: int
    iteration: int
    reason: str


class CheckpointRequests:
    """Records requests for a checkpoint, and which checkpoint met them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ask(self, run: str, reason: str = "", by: str = "") -> CheckpointRequest:
        """Asks for a checkpoint; returns the pending request if there is one already. Raises `RunNotFound`.

        by: who asks; empty if it is no person.
        """
        with self._database.write() as connection:
            row = lock_run(connection, self._database, run)
            pending = _pending(connection, run)
            if pending is not None:
                return pending
            iteration = int(row.iteration)
            link = append(connection, row, REQUESTED, {"iteration": iteration, "reason": reason} | signature(by))
        return CheckpointRequest(run=run, seq=link.seq, at=link.at, iteration=iteration, reason=reason)

    def pending(self, run: str) -> CheckpointRequest | None:
        """Returns the request that no checkpoint has met yet; None if there is none."""
        with self._database.read() as connection:
            return _pending(connection, run)

    def met_by(self, run: str, seq: int) -> int | None:
        """Returns the iteration of the checkpoint that met a request, or one that came after it; None if none has."""
        met = select(Event.body).where(Event.run == run, Event.kind == MET, Event.seq > seq)
        with self._database.read() as connection:
            row = connection.execute(met.order_by(Event.seq).limit(1)).one_or_none()
        return None if row is None else int(row.body["iteration"])

    def meet(self, fence: Fence, request: CheckpointRequest, iteration: int) -> None:
        """Records that the checkpoint of an iteration, which is durable, met a request. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, _):
            row = lock_run(connection, self._database, fence.run)
            append(connection, row, MET, {"request": request.seq, "iteration": iteration, "term": fence.term})


def _pending(connection: Connection, run: str) -> CheckpointRequest | None:
    asked = connection.execute(_NEWEST, given(run=run, kind=REQUESTED)).one_or_none()
    if asked is None:
        return None
    met = connection.execute(_NEWEST, given(run=run, kind=MET)).one_or_none()
    if met is not None and met.body["request"] >= asked.seq:
        return None
    return CheckpointRequest(
        run=run, seq=asked.seq, at=asked.at, iteration=asked.body["iteration"], reason=asked.body["reason"]
    )
