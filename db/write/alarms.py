"""Alarms: events of the audit chain that record what a guard found, when, its evidence, and the action it requests.

An alarm about a committed iteration is written in that commit's transaction; other alarms are recorded here, each id
only once. An alarm that requests more than an alert stays unanswered until the requested action has been taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from db.core.engine import Database, Fence
from db.core.models import Event
from db.write.events import append, lock_run
from db.write.outbox import OutboxEntry, enqueue

ALARM = "alarm"
ALERT = "alert"
ROLLBACK = "rollback"
"""Two of the actions: an alert needs nothing beyond its delivery; a rollback changes the run's line."""
ENDED = ("paused", "stopped")


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """An alarm.

    seq: number of its link in the chain.
    at: milliseconds since 1970.
    id: identical each time that the same alarm is raised.
    first: the earliest iteration involved.
    action: alert, pause, rollback or stop.
    """

    seq: int
    at: int
    id: str
    rule: str
    branch: int
    iteration: int
    first: int
    action: str
    text: str
    evidence: Mapping[str, Any]


class Alarms:
    """Records and reads the alarms of a run."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, fence: Fence, body: Mapping[str, Any], entries: Sequence[OutboxEntry] = ()) -> bool:
        """Adds an alarm and its outbox entries in one transaction; returns False if its id exists. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, _):
            run = lock_run(connection, self._database, fence.run)
            if any(row.id == body["id"] for row in _alarms(connection, fence.run)):
                return False
            append(connection, run, ALARM, body)
            enqueue(connection, fence.run, entries)
        return True

    def of(self, run: str) -> list[AlarmRow]:
        """Returns all alarms of a run, on every branch, oldest first."""
        with self._database.read() as connection:
            return _alarms(connection, run)

    def unanswered(self, run: str) -> list[AlarmRow]:
        """Returns the alarms whose requested action has not been taken since.

        A new branch answers all earlier alarms. Apart from that, a request to pause or stop is answered when the run
        is paused or stopped, and a request to roll back by a later alarm of the same rule at the same place, which
        explains why the rollback is impossible.
        """
        answers = select(Event.seq, Event.kind, Event.body).where(Event.run == run, Event.kind.in_(("state", "branch")))
        with self._database.read() as connection:
            rows = _alarms(connection, run)
            links = connection.execute(answers).all()
        branched = max((link.seq for link in links if link.kind == "branch"), default=0)
        ended = max((link.seq for link in links if link.kind == "state" and link.body["state"] in ENDED), default=0)
        last = {(row.rule, row.branch, row.iteration): row.seq for row in rows}

        def is_open(row: AlarmRow) -> bool:
            if row.action == ROLLBACK:
                return last[row.rule, row.branch, row.iteration] == row.seq
            return row.seq > ended

        return [row for row in rows if row.action != ALERT and row.seq > branched and is_open(row)]


def _alarms(connection: Connection, run: str) -> list[AlarmRow]:
    query = select(Event.seq, Event.at, Event.body).where(Event.run == run, Event.kind == ALARM).order_by(Event.seq)
    return [AlarmRow(seq=row.seq, at=row.at, **row.body) for row in connection.execute(query)]
