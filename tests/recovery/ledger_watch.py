"""Reads a struck run's state from the ledger: open phase, lost actors, terms. Survives restarts of the database."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.exc import DBAPIError

from db.core.engine import database_url, open_engine
from db.core.models import AttemptRow, Event, Lease, RunTable

T = TypeVar("T")
PATIENCE_SECONDS = 60.0
RETRY_SECONDS = 0.02
ACTOR_LOST = "actor_lost"


@dataclass(frozen=True, slots=True)
class OpenPhase:
    """An attempt at a phase that is in progress."""

    iteration: int
    phase: str
    number: int
    term: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a phase that has ended; times are milliseconds since 1970."""

    term: int
    state: str
    dispatched: int
    ended: int


class LedgerWatch:
    """Reads a run's rows. Times are milliseconds since 1970 by the database's clock, which is this machine's."""

    def __init__(self, address: str, run: str) -> None:
        self._engine = open_engine(database_url(address))
        self._run = run

    def close(self) -> None:
        self._engine.dispose()

    def open_phase(self) -> OpenPhase | None:
        """Returns the phase that is dispatched and has not ended, if any."""
        columns = (AttemptRow.iteration, AttemptRow.phase, AttemptRow.number, AttemptRow.term)
        query = select(*columns).where(
            AttemptRow.run == self._run, AttemptRow.ended_at.is_(None), AttemptRow.state == "DISPATCHED"
        )
        rows = self._rows(query)
        return OpenPhase(*rows[0]) if rows else None

    def ended_at(self, phase: OpenPhase) -> int | None:
        """Returns when an attempt ended, or None while it is open."""
        key = (AttemptRow.iteration == phase.iteration, AttemptRow.phase == phase.phase)
        query = select(AttemptRow.ended_at).where(AttemptRow.run == self._run, *key, AttemptRow.number == phase.number)
        return self._rows(query)[0][0]

    def term(self) -> int:
        """Returns the lease's term."""
        return int(self._rows(select(Lease.term).where(Lease.run == self._run))[0][0])

    def iteration(self) -> int:
        """Returns the last committed iteration."""
        return int(self._rows(select(RunTable.iteration).where(RunTable.id == self._run))[0][0] or 0)

    def failures_since(self, moment: int) -> int:
        """Returns the number of failed attempts and lost actors since a moment."""
        failed = select(func.count()).where(
            AttemptRow.run == self._run, AttemptRow.state == "FAILED", AttemptRow.ended_at >= moment
        )
        lost = select(func.count()).where(Event.run == self._run, Event.kind == ACTOR_LOST, Event.at >= moment)
        return int(self._rows(failed)[0][0]) + int(self._rows(lost)[0][0])

    def done_since(self, moment: int, without: Sequence[str] = ()) -> bool:
        """Returns whether a phase was dispatched since a moment and is done; some phases do not count."""
        query = select(func.count()).where(
            AttemptRow.run == self._run,
            AttemptRow.state == "DONE",
            AttemptRow.dispatched_at >= moment,
            AttemptRow.phase.not_in(without),
        )
        return bool(self._rows(query)[0][0])

    def attempts(self) -> list[Attempt]:
        """Returns all attempts at phases that were dispatched and have ended."""
        columns = (AttemptRow.term, AttemptRow.state, AttemptRow.dispatched_at, AttemptRow.ended_at)
        ended = (AttemptRow.dispatched_at.is_not(None), AttemptRow.ended_at.is_not(None))
        return [Attempt(*row) for row in self._rows(select(*columns).where(AttemptRow.run == self._run, *ended))]

    def first_dispatch(self, term: int) -> int | None:
        """Returns when a term's driver dispatched its first phase other than a start or a recovery."""
        query = select(func.min(AttemptRow.dispatched_at)).where(
            AttemptRow.run == self._run, AttemptRow.term == term, AttemptRow.phase.not_in(("start", "recover"))
        )
        return self._rows(query)[0][0]

    def commits(self) -> Counter[tuple[int, int]]:
        """Returns how often each (branch, iteration) was committed, by the audit chain."""
        rows = self._rows(select(Event.body).where(Event.run == self._run, Event.kind == "commit"))
        return Counter((int(body["branch"]), int(body["iteration"])) for (body,) in rows)

    def _rows(self, query: Select[tuple[T, ...]]) -> list[tuple[T, ...]]:
        def ask() -> list[tuple[T, ...]]:
            with self._engine.connect() as connection:
                return [tuple(row) for row in connection.execute(query)]

        return _patiently(ask)


def _patiently(ask: Callable[[], list[tuple[T, ...]]]) -> list[tuple[T, ...]]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except DBAPIError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
