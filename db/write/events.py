"""The audit chain: one per run, append-only, each link bound to the previous one by its hash.

A link is written in the same transaction as the fact it records, with the run's row locked, by drivers and
operators alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from db.core.engine import Database, Fence, canonical_json
from db.core.errors import Fenced, RunNotFound
from db.core.made_once import given, matching
from db.core.models import Event, RunTable
from db.core.subjects import SOUP, SWEEP, of_run, subject_of

GENESIS = "0" * 64
RESUME_REQUESTED = "resume_requested"
"""The kind of a link that says who starts a driver."""
COLUMNS_REGENERATED = "columns_regenerated"
"""The kind of a link that says which prepared columns were lost, and which were made in their place."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """A link of the chain.

    at: milliseconds since 1970.
    """

    run: str
    seq: int
    at: int
    kind: str
    body: Mapping[str, Any]
    prev_hash: str
    hash: str


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last link of a chain; seq is 0 if the chain is empty."""

    seq: int
    hash: str


_SET_HEAD = (
    update(RunTable).where(*matching(RunTable, "id")).values(event_seq=bindparam("seq"), event_hash=bindparam("hash"))
)


def lock_run(connection: Connection, database: Database, run: str) -> Any:
    """Returns the run's row, locked until the end of the transaction, with the time as `now`. Raises `RunNotFound`."""
    row = connection.execute(database.locked_run, given(id=run)).one_or_none()
    if row is None:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    return row


def append(connection: Connection, run: Any, kind: str, body: Mapping[str, Any]) -> EventRow:
    """Adds a link, which becomes the head of the chain.

    run: the row that `lock_run` returned in this transaction; a row can be used for one link only.
    """
    event = linked(
        run=run.id, seq=run.event_seq + 1, at=int(run.now), kind=kind, body=body, prev_hash=str(run.event_hash)
    )
    values = {name: getattr(event, name) for name in EventRow.__slots__}
    connection.execute(insert(Event), values)
    connection.execute(_SET_HEAD, given(id=run.id) | {"seq": event.seq, "hash": event.hash})
    return event


def signature(by: str) -> dict[str, str]:
    """Returns what names a person in the body of a link; nothing if there is no name."""
    return {"by": by} if by else {}


def linked(*, run: str, seq: int, at: int, kind: str, body: Mapping[str, Any], prev_hash: str) -> EventRow:
    """Returns the link that follows the one with the given hash."""
    unsealed = EventRow(
        run=run, seq=seq, at=at, kind=kind, body=json.loads(canonical_json(body)), prev_hash=prev_hash, hash=""
    )
    return replace(unsealed, hash=_hash(unsealed))


def first_broken(links: Sequence[EventRow]) -> int | None:
    """Returns the number of the first link that is missing or was altered; None if each follows from the previous one."""
    previous = GENESIS
    for expected, link in enumerate(links, start=1):
        if link.seq != expected or link.prev_hash != previous or link.hash != _hash(link):
            return expected
        previous = link.hash
    return None


def _hash(link: EventRow) -> str:
    covered = [link.run, link.seq, link.at, link.kind, link.body, link.prev_hash]
    return hashlib.sha256(canonical_json(covered).encode()).hexdigest()


class Events:
    """Reads, extends and verifies the chains."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, run: str, kind: str, body: Mapping[str, Any], fence: Fence | None = None) -> EventRow:
        """Adds a link.

        fence: of the run, or of the sweep or soup whose record the chain keeps, which must be valid (`Fenced`); None for
            operators.
        """
        if fence is None:
            with self._database.write() as connection:
                return append(connection, lock_run(connection, self._database, run), kind, body)
        if fence.subject not in (of_run(run), subject_of(SWEEP, run), subject_of(SOUP, run)):
            raise Fenced(f"the lease of {fence.subject} gives no right to write to the chain of run {run}")
        with self._database.fenced(fence) as (connection, _):
            return append(connection, lock_run(connection, self._database, run), kind, body)

    def links(self, run: str) -> list[EventRow]:
        """Returns all links, in order."""
        with self._database.read() as connection:
            return _links(connection, run)

    def of_kind(self, run: str, kind: str) -> list[EventRow]:
        """Returns the links of one kind, in order."""
        columns = select(*Event.__table__.columns)
        with self._database.read() as connection:
            rows = connection.execute(columns.where(Event.run == run, Event.kind == kind).order_by(Event.seq))
            return [EventRow(**row._mapping) for row in rows]

    def of_newest_runs(self, kind: str, runs: int) -> list[EventRow]:
        """Returns the links of one kind in the chains of the newest runs, newest first.

        runs: how many runs. Links are indexed by run and kind, and a home may have millions of them.
        """
        newest = (
            select(RunTable.id).order_by(RunTable.created_at.desc(), RunTable.number.desc(), RunTable.id).limit(runs)
        )
        query = select(*Event.__table__.columns).where(Event.run.in_(newest), Event.kind == kind)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(Event.at.desc(), Event.run, Event.seq.desc()))
            return [EventRow(**row._mapping) for row in rows]

    def runs_with(self, *kinds: str) -> list[str]:
        """Returns the runs whose chains have a link of one of these kinds, sorted."""
        query = select(Event.run).where(Event.kind.in_(kinds)).distinct().order_by(Event.run)
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def head(self, run: str) -> ChainHead:
        """Returns the last link. Raises `RunNotFound`."""
        with self._database.read() as connection:
            return _head(connection, run)

    def verify(self, run: str) -> int | None:
        """Returns the number of the first missing or altered link; None if the chain is intact.

        Raises `RunNotFound`.
        """
        with self._database.read() as connection:
            head = _head(connection, run)
            links = _links(connection, run)
        broken = first_broken(links)
        if broken is not None:
            return broken
        last = len(links)
        newest = links[-1].hash if links else GENESIS
        return None if (last, newest) == (head.seq, head.hash) else min(last, head.seq) + 1


def _head(connection: Connection, run: str) -> ChainHead:
    row = connection.execute(select(RunTable.event_seq, RunTable.event_hash).where(RunTable.id == run)).one_or_none()
    if row is None:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    return ChainHead(row.event_seq, row.event_hash)


def _links(connection: Connection, run: str) -> list[EventRow]:
    rows = connection.execute(select(*Event.__table__.columns).where(Event.run == run).order_by(Event.seq))
    return [EventRow(**row._mapping) for row in rows]
