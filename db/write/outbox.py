"""The outbox: messages that are still to be delivered to the tracker or to people, in order, each row once.

Rows are claimed under the term of the lease. A row that was claimed before but not marked as delivered may or may not
have arrived, so its deliverer first searches for the object that it would create. A metrics row contains branch and
iteration; its values are read from the metric points when the row is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, or_, select, update

from db.core.engine import Database, Fence
from db.core.errors import Conflict, OutOfOrder
from db.core.holder import Holder, holder_of
from db.core.models import CheckpointRow, Lease, Outbox
from db.write.metrics import points_at

MLFLOW = "mlflow"
PEOPLE = "people"
"""Lanes: a row is delivered to MLflow unless it names another tracker; notifications are delivered to people."""
REFUSED = "refused: "
"""Begins what a row that its receiver has refused for good keeps in place of the id of what it would have created."""
CREATION = "run"
METRICS = "metrics"
CHECKPOINT = "checkpoint"
NOTIFICATION = "notification"
"""Kinds with special handling: the creation of a run in a tracker; metrics and checkpoints, which are connected when a
row is claimed; and notifications to people."""


_OWNERS = select(Outbox.id, Outbox.run).where(Outbox.id.in_(bindparam("ids", expanding=True)))
"""Made once: each commit has entries."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A message to deliver.

    id: identical each time the same entry is written.
    kind: `run`, `params`, `tags`, `metrics`, `artifact`, ... for the tracker; `notification` for people.
    lane: the tracker that receives it; has no effect on notifications.
    """

    id: str
    kind: str
    payload: Mapping[str, Any]
    logged_at_ms: int
    lane: str = MLFLOW

    def to(self, lane: str) -> OutboxEntry:
        """Returns the same message for a lane, with an id of its own."""
        return self if lane == self.lane else replace(self, id=lane_id(self.id, lane), lane=lane)


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A row to deliver now.

    claims: number of earlier claims of the row; if it is not 0, the row may have arrived already.

    The payload of kind `metrics` contains branch, iteration, metrics (key -> value) and, if there are any, the terms of the
    iteration's checkpoints (`checkpoint_terms`). That of kind `checkpoint` contains the metrics too and, once they are
    committed, the time at which they were logged (`measured_at`).
    """

    seq: int
    id: str
    kind: str
    payload: Mapping[str, Any]
    logged_at_ms: int
    claims: int


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """The undelivered rows of a run, and the process that may be about to deliver them.

    silent_seconds: time since the lease expired; negative while it is valid.
    """

    run: str
    rows: int
    holder: Holder | None
    silent_seconds: float


def lane_id(entry_id: str, lane: str) -> str:
    """Returns the id of an entry's row in a lane."""
    return entry_id if lane == MLFLOW else f"{entry_id}@{lane}"


def metrics_id(run: str, branch: int, iteration: int) -> str:
    """Returns the id of an iteration's row of kind metrics."""
    return f"{run}/b{branch}/i{iteration}/metrics"


def enqueue(connection: Connection, run: str, entries: Sequence[OutboxEntry]) -> int:
    """Adds the entries that do not exist yet, in order; returns their number.

    Raises `Conflict` if an id belongs to another run.
    """
    if not entries:
        return 0
    ids = [entry.id for entry in entries]
    known = {row.id: row.run for row in connection.execute(_OWNERS, {"ids": ids})}
    for name, owner in known.items():
        if owner != run:
            raise Conflict(f"outbox id {name!r} belongs to run {owner}, not to {run}")
    rows = [
        {
            "id": entry.id,
            "run": run,
            "lane": PEOPLE if entry.kind == NOTIFICATION else entry.lane,
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
    """Hands out rows to the single deliverer of a term, and records which arrived."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enqueue(self, fence: Fence, entries: Sequence[OutboxEntry]) -> int:
        """Adds the entries whose ids do not exist yet; returns their number. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, _):
            return enqueue(connection, fence.run, entries)

    def claim(self, fence: Fence, limit: int = 100, lane: str = MLFLOW) -> list[ClaimedRow]:
        """Returns the oldest undelivered rows that this term has not claimed, or has given back. Raises `Fenced`.

        lane: the tracker, or `people`. Lanes are delivered independently.
        """
        with self._database.fenced(fence) as (connection, _):
            rows = connection.execute(
                select(*Outbox.__table__.columns)
                .where(Outbox.run == fence.run, Outbox.delivered_at.is_(None))
                .where(or_(Outbox.claimed_term.is_(None), Outbox.claimed_term != fence.term))
                .where(Outbox.lane == lane)
                .order_by(Outbox.seq)
                .limit(limit)
            ).all()
            connection.execute(
                update(Outbox)
                .where(Outbox.seq.in_([row.seq for row in rows]))
                .values(claimed_term=fence.term, claims=Outbox.claims + 1)
            )
            claimed = [
                ClaimedRow(
                    seq=row.seq,
                    id=row.id,
                    kind=row.kind,
                    payload=row.payload,
                    logged_at_ms=row.logged_at,
                    claims=row.claims,
                )
                for row in rows
            ]
            return [_with_points(connection, fence.run, row) for row in claimed]

    def give_back(self, fence: Fence, lane: str = MLFLOW) -> None:
        """Makes this term's claimed but undelivered rows available again. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, _):
            connection.execute(
                update(Outbox)
                .where(Outbox.run == fence.run, Outbox.delivered_at.is_(None), Outbox.claimed_term == fence.term)
                .where(Outbox.lane == lane)
                .values(claimed_term=None)
            )

    def delivered(self, fence: Fence, ids: Sequence[str], external_id: str | None = None) -> None:
        """Records that rows claimed by this term have arrived.

        external_id: the tracker's id of the object that was created.

        Raises `Fenced`; `OutOfOrder` if a row is not claimed by this term or was already delivered, and then
        records none.
        """
        with self._database.fenced(fence) as (connection, now):
            changed = connection.execute(
                update(Outbox)
                .where(Outbox.id.in_(ids), Outbox.run == fence.run, Outbox.delivered_at.is_(None))
                .where(Outbox.claimed_term == fence.term)
                .values(delivered_at=now, external_id=external_id)
            ).rowcount
            if changed != len(set(ids)):
                raise OutOfOrder(f"run {fence.run}: only {changed} of {list(ids)} are claimed by term {fence.term}")

    def refused(self, fence: Fence, entry_id: str, reason: str) -> None:
        """Records that a row claimed by this term was refused for good, so that it stays unsent. Raises as `delivered` does."""
        self.delivered(fence, [entry_id], f"{REFUSED}{reason}")

    def external_id(self, entry_id: str) -> str | None:
        """Returns the tracker's id of the object that a delivered row created; None if there is none yet."""
        with self._database.read() as connection:
            return connection.execute(select(Outbox.external_id).where(Outbox.id == entry_id)).scalar_one_or_none()

    def last_notified(self, run: str) -> float | None:
        """Returns the seconds since the last notification was delivered; None if there was none."""
        query = select(func.max(Outbox.delivered_at), self._database.now()).where(
            Outbox.run == run, Outbox.kind == NOTIFICATION
        )
        with self._database.read() as connection:
            last, now = connection.execute(query).one()
        return None if last is None else (now - last) / 1000

    def counts(self, run: str, lane: str = MLFLOW) -> tuple[int, int]:
        """Returns (pending, delivered) rows of a lane."""
        query = select(func.count(), func.count(Outbox.delivered_at)).where(Outbox.run == run, Outbox.lane == lane)
        with self._database.read() as connection:
            total, delivered = connection.execute(query).one()
        return total - delivered, delivered

    def lanes(self, run: str) -> tuple[str, ...]:
        """Returns the lanes in which a run has undelivered rows, by name."""
        query = select(Outbox.lane).where(Outbox.run == run, Outbox.delivered_at.is_(None)).distinct()
        with self._database.read() as connection:
            return tuple(connection.execute(query.order_by(Outbox.lane)).scalars())

    def undelivered(self) -> tuple[PendingDelivery, ...]:
        """Returns the runs with undelivered rows, ordered by id."""
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
                PendingDelivery(row.run, row.rows, holder_of(row), (row.now - row.expires_at) / 1000)
                for row in connection.execute(query)
            )


def _with_points(connection: Connection, run: str, row: ClaimedRow) -> ClaimedRow:
    """Adds an iteration's points to its row of kind metrics and to its checkpoints, whichever is written first."""
    if row.kind not in (METRICS, CHECKPOINT):
        return row
    branch = row.payload["branch"]
    iteration = row.payload["iteration"]
    added: dict[str, Any] = {"metrics": points_at(connection, run, branch, iteration)}
    if row.kind == METRICS:
        place = (CheckpointRow.run == run, CheckpointRow.branch == branch, CheckpointRow.iteration == iteration)
        terms = list(
            connection.execute(select(CheckpointRow.term).where(*place).order_by(CheckpointRow.term)).scalars()
        )
        added |= {"checkpoint_terms": terms} if terms else {}
    else:
        logged = select(Outbox.logged_at).where(Outbox.id == metrics_id(run, branch, iteration))
        at_ms = connection.execute(logged).scalar_one_or_none()
        added |= {} if at_ms is None else {"measured_at": at_ms}
    return replace(row, payload={**row.payload, **added})
