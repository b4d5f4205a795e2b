"""What runs wait for outside of YATT, such as the endpoint of a judge.

A driver that waits writes its row before each pause and removes it when it goes on. The row changes no result: it tells
people what happens, and carries their request for a try at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, exists, insert, select, update

from db.core.engine import Database, Fence
from db.core.models import EntryRow, Lease, RunWait
from db.write.events import append, lock_run, signature
from db.write.queueing import RUNNING

ASKED = "wait_asked"
"""Kind of the event that records a request for a try at once."""


@dataclass(frozen=True, slots=True)
class WaitRow:
    """What a run waits for. Times are milliseconds since 1970.

    since: when it was found to be away.
    next_try_at: when the driver will look whether it is back.
    tries: how often it has looked so far.
    returned_at: when the run gave its devices back; None while it holds them.
    """

    run: str
    dependency: str
    reason: str
    since: int
    next_try_at: int
    tries: int
    returned_at: int | None = None


_COLUMNS = tuple(getattr(RunWait, name) for name in WaitRow.__slots__)


class Waits:
    """Reads and writes what runs wait for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, fence: Fence, row: WaitRow) -> None:
        """Replaces what the run waits for, and keeps a request that the driver has not seen. Raises `Fenced`."""
        fence.require_run(row.run)
        values = {name: getattr(row, name) for name in WaitRow.__slots__} | {"term": fence.term}
        with self._database.fenced(fence) as (connection, _):
            changed = connection.execute(update(RunWait).where(RunWait.run == fence.run).values(**values))
            if not changed.rowcount:
                connection.execute(insert(RunWait), values)

    def take_devices(self, fence: Fence) -> bool:
        """Notes that the run takes devices again; returns False if the queue has its devices, from which it must get others.

        Raises `Fenced`.
        """
        entry = select(EntryRow.state).where(EntryRow.run == fence.run, EntryRow.ended_at.is_(None))
        with self._database.fenced(fence) as (connection, _):
            lock_run(connection, self._database, fence.run)
            state = connection.execute(entry).scalar_one_or_none()
            if state not in (None, RUNNING):
                return False
            connection.execute(update(RunWait).where(RunWait.run == fence.run).values(returned_at=None))
        return True

    def over(self, fence: Fence) -> None:
        """Removes the run's row, if there is one. Raises `Fenced`."""
        with self._database.fenced(fence) as (connection, _):
            connection.execute(delete(RunWait).where(RunWait.run == fence.run))

    def of(self, runs: Sequence[str]) -> dict[str, WaitRow]:
        """Returns what runs wait for whose driver of now has said so."""
        query = (
            select(*_COLUMNS)
            .join(Lease, Lease.run == RunWait.run)
            .where(RunWait.run.in_(runs), Lease.term == RunWait.term, Lease.holder.is_not(None))
        )
        with self._database.read() as connection:
            return {row.run: WaitRow(**row._mapping) for row in connection.execute(query)}

    def ask(self, run: str, by: str = "") -> bool:
        """Asks the run's driver to try at once; returns False if it does not wait or is lost. Raises `RunNotFound`."""
        if run not in self.of([run]):
            return False
        lives = exists().where(Lease.run == run, Lease.term == RunWait.term, Lease.expires_at > self._database.now())
        with self._database.write() as connection:
            head = lock_run(connection, self._database, run)
            changed = connection.execute(update(RunWait).where(RunWait.run == run, lives).values(asked_at=head.now))
            if changed.rowcount:
                append(connection, head, ASKED, signature(by))
        return bool(changed.rowcount)

    def take(self, fence: Fence) -> bool:
        """Returns True, once, if somebody has asked for a try at once. Raises `Fenced`."""
        query = select(RunWait.run).where(RunWait.run == fence.run, RunWait.asked_at.is_not(None))
        with self._database.read() as connection:
            if connection.execute(query).one_or_none() is None:
                return False
        with self._database.fenced(fence) as (connection, _):
            connection.execute(update(RunWait).where(RunWait.run == fence.run).values(asked_at=None))
        return True
