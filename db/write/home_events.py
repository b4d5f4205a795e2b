"""The audit chain of the home: acts that concern no run that exists, such as a run whose creation was refused.

As in the chain of a run (`db.write.events`), each link is bound to the previous one by its hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from db.core.engine import Database
from db.core.models import HomeEvent
from db.write.events import GENESIS, EventRow, first_broken, linked

CREATION_REFUSED = "creation_refused"
"""Kind of the link for a run that somebody asked for and did not get."""
HOME = ""
"""Stands in place of the run's name."""
TRIES = 20
"""How often a link is tried again that another process has added at the same time."""


class HomeEvents:
    """Reads, extends and verifies the home's chain."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, kind: str, body: Mapping[str, Any]) -> EventRow:
        """Adds a link."""
        for _ in range(TRIES - 1):
            try:
                return self._append(kind, body)
            except IntegrityError:
                continue
        return self._append(kind, body)

    def links(self) -> list[EventRow]:
        """Returns all links, in order."""
        with self._database.read() as connection:
            rows = connection.execute(select(*HomeEvent.__table__.columns).order_by(HomeEvent.seq))
            return [EventRow(run=HOME, **row._mapping) for row in rows]

    def verify(self) -> int | None:
        """Returns the number of the first missing or altered link; None if the chain is intact up to its newest link."""
        return first_broken(self.links())

    def _append(self, kind: str, body: Mapping[str, Any]) -> EventRow:
        with self._database.write() as connection:
            event = self._next(connection, kind, body)
            columns = [column.name for column in HomeEvent.__table__.columns]
            connection.execute(insert(HomeEvent), {name: getattr(event, name) for name in columns})
        return event

    def _next(self, connection: Connection, kind: str, body: Mapping[str, Any]) -> EventRow:
        newest = connection.execute(
            select(HomeEvent.seq, HomeEvent.hash).order_by(HomeEvent.seq.desc()).limit(1)
        ).one_or_none()
        seq, previous = (1, GENESIS) if newest is None else (newest.seq + 1, newest.hash)
        now = int(connection.execute(select(self._database.now())).scalar_one())
        return linked(run=HOME, seq=seq, at=now, kind=kind, body=body, prev_hash=previous)
