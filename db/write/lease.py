"""Leases: one holder for each subject, identified by its term. Each new holder increments the term, which fences older ones.

A subject is a run, a pipeline, a sweep, a soup, the queue or the home (`db.core.subjects`). Consumes the process that requests
a lease; produces a `Fence`, which every write of its holder carries. The database's clock decides when a lease expires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, insert, select, update

from db.core.engine import Database, Fence
from db.core.errors import Conflict, LeaseHeld
from db.core.holder import Holder, holder_columns, holder_of, is_gone
from db.core.lease_rows import free_lease, lock_lease
from db.core.models import DriverSessionTable, Event, Lease
from db.core.subjects import PIPELINE, RUN, kind_of, of_run
from db.write.events import append, lock_run
from db.write.phases import LOST_DRIVER, fail_open
from db.write.pipelines import take_over
from db.write.runs import forget_stop

DRIVER_LOST = "driver lost"
TAKEN = "lease_taken"
ENDED = "ended"
LOST = "lost"
"""Outcomes of a driver session that ended in order, and of one whose driver was replaced before it had recorded an end."""


class Leases:
    """Takes, renews and releases leases, and records the sessions that held a run's."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(
        self, run: str, holder: Holder, ttl_seconds: float, holder_is_gone: Callable[[Holder], bool] = is_gone
    ) -> Fence:
        """Takes the lease of a run, as `take` does."""
        return self.take(of_run(run), holder, ttl_seconds, holder_is_gone)

    def take(
        self, subject: str, holder: Holder, ttl_seconds: float, holder_is_gone: Callable[[Holder], bool] = is_gone
    ) -> Fence:
        """Takes a lease if it is free, expired, or held by a process that is gone; increments the term.

        holder_is_gone: returns True if a holder has certainly ended.

        Cleans up after the last holder. Of a run: marks its open attempts as failed (class `driver_lost`), and its session as
        lost; a stop that was requested of the last holder does not apply to the new one. Of a pipeline: its open attempts at
        jobs are lost. Raises `LeaseHeld`, `RunNotFound`, `PipelineNotFound`.
        """
        with self._database.write() as connection:
            lease = lock_lease(connection, self._database, subject)
            before = holder_of(lease)
            if before is not None and lease.expires_at > lease.now and not holder_is_gone(before):
                raise LeaseHeld(subject, before.text, (lease.expires_at - lease.now) / 1000)
            fence = Fence(subject, lease.term + 1)
            ttl = round(ttl_seconds * 1000)
            connection.execute(
                update(Lease)
                .where(Lease.subject == subject)
                .values(
                    term=fence.term,
                    **holder_columns(holder),
                    ttl_ms=ttl,
                    expires_at=lease.now + ttl,
                )
            )
            if kind_of(subject) == RUN:
                self._clean_up_run(connection, fence, holder, lease)
            elif kind_of(subject) == PIPELINE:
                take_over(connection, fence.name_as(PIPELINE), lease.now)
        return fence

    def holders(self) -> dict[str, Holder]:
        """Returns the holder of each run's lease that is not free; a holder may be dead, or its lease expired."""
        with self._database.read() as connection:
            rows = connection.execute(select(Lease.__table__).where(Lease.run.is_not(None)).order_by(Lease.run))
            return {row.run: holder for row in rows if (holder := holder_of(row)) is not None}

    def lost_in_a_row(self, run: str, kind: str, since: int) -> int:
        """Returns how many holders of a kind, one after another, ended without releasing the lease.

        kind: the beginning of their texts. Holders of other kinds in between neither count nor end the row.
        since: only losses noticed at this time or later (milliseconds since 1970) are counted.
        """
        taken = select(Event.at, Event.body).where(Event.run == run, Event.kind == TAKEN).order_by(Event.seq.desc())
        count = 0
        was_free = False
        with self._database.read() as connection:
            for row in connection.execute(taken):
                if row.at < since or (was_free and row.body["holder"].startswith(kind)):
                    break  # too long ago, or the end of a holder that released the lease
                before = row.body["from"]
                count += before is not None and before.startswith(kind)
                was_free = before is None
        return count

    def renew(self, fence: Fence, ttl_seconds: float) -> None:
        """Extends the lease by its full lifetime. Raises `Fenced`."""
        ttl = round(ttl_seconds * 1000)
        with self._database.fenced(fence) as (connection, now):
            own = update(Lease).where(Lease.subject == fence.subject)
            connection.execute(own.values(expires_at=now + ttl, ttl_ms=ttl))

    def release(self, fence: Fence) -> None:
        """Releases the lease, after which the fence is no longer valid. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, now):
            free_lease(connection, fence.subject, now)
            if kind_of(fence.subject) == RUN:
                self._record(connection, fence.run, "lease_released", {"term": fence.term})

    def start_session(self, fence: Fence, flow_run_id: str, flow_run_name: str) -> None:
        """Records the flow run that holds this term; may be repeated. Raises `Fenced`; `Conflict` if the term has another one."""
        with self._database.fenced(fence) as (connection, now):
            key = (DriverSessionTable.run == fence.run, DriverSessionTable.term == fence.term)
            known = connection.execute(select(DriverSessionTable.flow_run_id).where(*key)).one_or_none()
            if known is not None and known.flow_run_id == flow_run_id:
                return
            if known is not None:
                raise Conflict(f"run {fence.run}: term {fence.term} already has a session")
            row = {
                "run": fence.run,
                "term": fence.term,
                "flow_run_id": flow_run_id,
                "flow_run_name": flow_run_name,
                "started_at": now,
            }
            connection.execute(insert(DriverSessionTable), row)

    def end_session(self, fence: Fence, outcome: str) -> None:
        """Records how the session ended. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, now):
            connection.execute(
                update(DriverSessionTable)
                .where(
                    DriverSessionTable.run == fence.run,
                    DriverSessionTable.term == fence.term,
                    DriverSessionTable.ended_at.is_(None),
                )
                .values(ended_at=now, outcome=outcome)
            )

    def _clean_up_run(self, connection: Connection, fence: Fence, holder: Holder, lease: Any) -> None:
        """Closes what the last holder of a run's lease left open, and records who has the lease now.

        lease: its row before.
        """
        _close_leftovers(connection, fence.run, lease.now)
        forget_stop(connection, self._database, fence.run)
        # The replaced holder's last renewal: the only record of when it was last alive.
        renewed_at = None if lease.holder is None else lease.expires_at - lease.ttl_ms
        taken = {"term": fence.term, "holder": holder.text, "from": lease.holder, "renewed_at": renewed_at}
        self._record(connection, fence.run, TAKEN, taken)

    def _record(self, connection: Connection, run: str, kind: str, body: Mapping[str, Any]) -> None:
        append(connection, lock_run(connection, self._database, run), kind, body)


def _close_leftovers(connection: Connection, run: str, now: int) -> None:
    fail_open(connection=connection, run=run, reason=DRIVER_LOST, now=now, failure_class=LOST_DRIVER)
    connection.execute(
        update(DriverSessionTable)
        .where(DriverSessionTable.run == run, DriverSessionTable.ended_at.is_(None))
        .values(ended_at=now, outcome=LOST)
    )
