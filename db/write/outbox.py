"""The outbox: what the tracker, or people, are still to be told, in order, each row once.

Rows are claimed under the term. A row that was claimed before and not marked delivered may or may not have arrived: its
deliverer searches before it creates. A metrics row holds branch and iteration; its values come from the points when claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, or_, select, update

from db.core.engine import Database, Fence
from db.core.errors import Conflict, OutOfOrder
from db.core.holder import Holder, holder_of
from db.core.models import Lease, Outbox
from db.write.metrics import points_at

METRICS, NOTIFICATION = "metrics", "notification"
"""Kinds that are treated apart: points, which are read when they are claimed, and what people are told."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """Something to tell. id: the same whenever it is written again. kind: run, params, tags, metrics, artifact, ...;
    notification: for people, not for the tracker.
    """

    id: str
    kind: str
    payload: Mapping[str, Any]
    logged_at_ms: int


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A row to deliver now. claims: earlier claims of it; more than 0 means that it may have arrived already.

    The payload of kind metrics has branch, iteration and metrics (key -> value).
    """

    seq: int
    id: str
    kind: str
    payload: Mapping[str, Any]
    logged_at_ms: int
    claims: int


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Rows of a run that are still to be delivered, and who may be about to. silent_seconds: since its lease ran out, less
    than 0 while it is good.
    """

    run: str
    rows: int
    holder: Holder | None
    silent_seconds: float


def metrics_id(run: str, branch: int, iteration: int) -> str:
    """The id of an iteration's row of kind metrics."""
    return f"{run}/b{branch}/i{iteration}/metrics"


def enqueue(connection: Connection, run: str, entries: Sequence[OutboxEntry]) -> int:
    """Adds the entries that are not there yet, in order; returns how many. Raises `Conflict` for another run's id."""
    if not entries:
        return 0
    ids = [entry.id for entry in entries]
    known = {row.id: row.run for row in connection.execute(select(Outbox.id, Outbox.run).where(Outbox.id.in_(ids)))}
    for name, owner in known.items():
        if owner != run:
            raise Conflict(f"outbox id {name!r} belongs to run {owner}, not to {run}")
    rows = [
        {
            "id": entry.id,
            "run": run,
            "kind": entry.kind,
            "payload": entry.payload,
            "logged_at": entry.logged_at_ms,
            "claims": 0,
        }
        for entry in entries
        if entry.id not in known
    ]
    if rows:
        connection.execute(insert(Outbox), rows)
    return len(rows)


class Deliveries:
    """Hands out the rows to the one deliverer of a term, and books what arrived."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enqueue(self, fence: Fence, entries: Sequence[OutboxEntry]) -> int:
        """Adds the entries whose ids are not there yet; returns how many. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, _):
            return enqueue(connection, fence.run, entries)

    def claim(self, fence: Fence, limit: int = 100, notifications: bool = False) -> list[ClaimedRow]:
        """The oldest undelivered rows, which this term has not claimed yet or has given back. Raises `Fenced`.

        notifications: those for people, in place of those for the tracker: neither waits for the other.
        """
        with self._database.fenced(fence) as (connection, _):
            rows = connection.execute(
                select(*Outbox.__table__.columns)
                .where(Outbox.run == fence.run, Outbox.delivered_at.is_(None))
                .where(or_(Outbox.claimed_term.is_(None), Outbox.claimed_term != fence.term))
                .where(_of_lane(notifications))
                .order_by(Outbox.seq)
                .limit(limit)
            ).all()
            connection.execute(
                update(Outbox)
                .where(Outbox.seq.in_([row.seq for row in rows]))
                .values(claimed_term=fence.term, claims=Outbox.claims + 1)
            )
            claimed = [ClaimedRow(row.seq, row.id, row.kind, row.payload, row.logged_at, row.claims) for row in rows]
            return [_with_points(connection, fence.run, row) for row in claimed]

    def give_back(self, fence: Fence, notifications: bool = False) -> None:
        """Rows that this term has claimed and that are not booked as delivered may be claimed again. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, _):
            connection.execute(
                update(Outbox)
                .where(Outbox.run == fence.run, Outbox.delivered_at.is_(None), Outbox.claimed_term == fence.term)
                .where(_of_lane(notifications))
                .values(claimed_term=None)
            )

    def delivered(self, fence: Fence, ids: Sequence[str], external_id: str | None = None) -> None:
        """Rows that this term claimed have arrived; external_id: the tracker's name for what was created.

        Raises `Fenced`; `OutOfOrder` for a row that is not claimed by this term, or was delivered, and then books none.
        """
        with self._database.fenced(fence) as (connection, now):
            changed = connection.execute(
                update(Outbox)
                .where(Outbox.id.in_(ids), Outbox.run == fence.run, Outbox.delivered_at.is_(None))
                .where(Outbox.claimed_term == fence.term)
                .values(delivered_at=now, external_id=external_id)
            ).rowcount
            if changed != len(set(ids)):
                raise OutOfOrder(f"run {fence.run}: of {list(ids)} only {changed} are claimed by term {fence.term}")

    def external_id(self, entry_id: str) -> str | None:
        """The tracker's name for what a delivered row created; None while there is none."""
        with self._database.read() as connection:
            return connection.execute(select(Outbox.external_id).where(Outbox.id == entry_id)).scalar_one_or_none()

    def last_notified(self, run: str) -> float | None:
        """Seconds since people were last told something; None if they never were."""
        query = select(func.max(Outbox.delivered_at), self._database.now()).where(
            Outbox.run == run, Outbox.kind == NOTIFICATION
        )
        with self._database.read() as connection:
            last, now = connection.execute(query).one()
        return None if last is None else (now - last) / 1000

    def counts(self, run: str, notifications: bool = False) -> tuple[int, int]:
        """(pending, delivered) rows for the tracker, or those for people."""
        query = select(func.count(), func.count(Outbox.delivered_at)).where(Outbox.run == run, _of_lane(notifications))
        with self._database.read() as connection:
            total, delivered = connection.execute(query).one()
        return total - delivered, delivered

    def undelivered(self) -> tuple[Undelivered, ...]:
        """Runs with rows to deliver, by name."""
        pending = (
            select(Outbox.run, func.count().label("rows")).where(Outbox.delivered_at.is_(None)).group_by(Outbox.run)
        ).subquery()
        query = (
            select(pending.c.rows, *Lease.__table__.columns, self._database.now().label("now"))
            .join(Lease, Lease.run == pending.c.run)
            .order_by(Lease.run)
        )
        with self._database.read() as connection:
            return tuple(
                Undelivered(row.run, row.rows, holder_of(row), (row.now - row.expires_at) / 1000)
                for row in connection.execute(query)
            )


def _of_lane(notifications: bool) -> ColumnElement[bool]:
    return Outbox.kind == NOTIFICATION if notifications else Outbox.kind != NOTIFICATION


def _with_points(connection: Connection, run: str, row: ClaimedRow) -> ClaimedRow:
    if row.kind != METRICS:
        return row
    points = points_at(connection, run, row.payload["branch"], row.payload["iteration"])
    return replace(row, payload={**row.payload, "metrics": points})
