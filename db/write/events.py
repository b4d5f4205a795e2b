"""The audit chain: one per run, append-only, each link bound to the one before it by its hash.

A link is written in the transaction of the fact that it records, with the run's row locked, by drivers and operators alike.
Old links may be pruned: a checkpoint in the chain itself says through which number, and with which hash that one ended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from db.core.engine import Database, Fence, canonical_json
from db.core.errors import OutOfOrder, RunNotFound
from db.core.models import Event, Run

GENESIS = "0" * 64
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class EventRow:
    """A link of the chain. at: milliseconds since 1970."""

    run: str
    seq: int
    at: int
    kind: str
    body: Mapping[str, Any]
    prev_hash: str
    hash: str


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last link of a chain; seq 0 of an empty one."""

    seq: int
    hash: str


def lock_run(connection: Connection, database: Database, run: str) -> Any:
    """The run's row, locked to the end of the transaction, with the time as `now`. Raises `RunNotFound`."""
    row = connection.execute(
        select(*Run.__table__.columns, database.now().label("now")).where(Run.id == run).with_for_update(key_share=True)
    ).one_or_none()
    if row is None:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    return row


def append(connection: Connection, run: Any, kind: str, body: Mapping[str, Any]) -> EventRow:
    """Adds a link and moves the head. run: the row from `lock_run` in this transaction, used for one link only."""
    plain = json.loads(canonical_json(body))
    seq, at, prev_hash = run.event_seq + 1, int(run.now), str(run.event_hash)
    event = EventRow(run.id, seq, at, kind, plain, prev_hash, _hash(run.id, seq, at, kind, plain, prev_hash))
    values = {name: getattr(event, name) for name in EventRow.__slots__}
    connection.execute(insert(Event), values)
    connection.execute(update(Run).where(Run.id == run.id).values(event_seq=seq, event_hash=event.hash))
    return event


def _hash(run: str, seq: int, at: int, kind: str, body: Mapping[str, Any], prev_hash: str) -> str:
    return hashlib.sha256(canonical_json([run, seq, at, kind, body, prev_hash]).encode()).hexdigest()


class Events:
    """Reads, extends and verifies the chains."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, run: str, kind: str, body: Mapping[str, Any], fence: Fence | None = None) -> EventRow:
        """Adds a link; with a fence only while its epoch holds the run (`Fenced`), without one for operators."""
        if fence is None:
            with self._database.write() as connection:
                return append(connection, lock_run(connection, self._database, run), kind, body)
        with self._database.fenced(fence) as (connection, _):
            return append(connection, lock_run(connection, self._database, fence.run), kind, body)

    def checkpoint(self, fence: Fence, through: int, digests: Mapping[str, str]) -> EventRow:
        """Removes the links up to number `through` and appends one that stands for them, from which `verify` continues.

        digests: what the removed links attested and is still to be compared. Raises `Fenced`; `OutOfOrder` if the link
        `through` is not there.
        """
        with self._database.fenced(fence) as (connection, _):
            row = lock_run(connection, self._database, fence.run)
            query = select(Event.hash).where(Event.run == fence.run, Event.seq == through)
            last = connection.execute(query).scalar_one_or_none()
            if last is None:
                raise OutOfOrder(f"run {fence.run}: link {through} is not in the chain, which ends at {row.event_seq}")
            body = {"count": through, "head": last, "digests": digests}
            link = append(connection, row, CHECKPOINT, body)
            connection.execute(delete(Event).where(Event.run == fence.run, Event.seq <= through))
            return link

    def links(self, run: str) -> list[EventRow]:
        """All links that are kept, in order."""
        with self._database.read() as connection:
            return _links(connection, run)

    def of_kind(self, run: str, kind: str) -> list[EventRow]:
        """The links of one kind, in order."""
        columns = select(*Event.__table__.columns)
        with self._database.read() as connection:
            rows = connection.execute(columns.where(Event.run == run, Event.kind == kind).order_by(Event.seq))
            return [EventRow(**row._mapping) for row in rows]

    def head(self, run: str) -> ChainHead:
        """The last link. Raises `RunNotFound`."""
        with self._database.read() as connection:
            return _head(connection, run)

    def verify(self, run: str) -> int | None:
        """Number of the first link that is missing or was changed; None for a sound chain. Raises `RunNotFound`.

        Links that a checkpoint stands for are not missing.
        """
        with self._database.read() as connection:
            head = _head(connection, run)
            links = _links(connection, run)
        base = _base(links)
        if base is None:
            return 1
        previous = base.hash
        for expected, link in enumerate(links, start=base.seq + 1):
            own = _hash(link.run, link.seq, link.at, link.kind, link.body, link.prev_hash)
            if link.seq != expected or link.prev_hash != previous or link.hash != own:
                return expected
            previous = link.hash
        last = base.seq + len(links)
        return None if (last, previous) == (head.seq, head.hash) else min(last, head.seq) + 1


def _base(links: list[EventRow]) -> ChainHead | None:
    """What the first link has to follow: nothing, or what a checkpoint says was removed; None if none says so."""
    if not links or links[0].seq == 1:
        return ChainHead(0, GENESIS)
    base = ChainHead(links[0].seq - 1, links[0].prev_hash)
    stated = {"count": base.seq, "head": base.hash}
    named = any(link.kind == CHECKPOINT and stated.items() <= dict(link.body).items() for link in links)
    return base if named else None


def _head(connection: Connection, run: str) -> ChainHead:
    row = connection.execute(select(Run.event_seq, Run.event_hash).where(Run.id == run)).one_or_none()
    if row is None:
        raise RunNotFound(f"there is no run {run!r} in this ledger")
    return ChainHead(row.event_seq, row.event_hash)


def _links(connection: Connection, run: str) -> list[EventRow]:
    rows = connection.execute(select(*Event.__table__.columns).where(Event.run == run).order_by(Event.seq))
    return [EventRow(**row._mapping) for row in rows]
