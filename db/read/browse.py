"""Pages of a run's placement decisions, faults, events and checkpoints, newest first. Reads only.

Every page has a limit and starts after the last row of the previous one, so all pages cost the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from sqlalchemy import ColumnElement, Connection, Select, select, true, tuple_

from db.core.ancestry import ancestry
from db.core.engine import Database
from db.core.models import AttemptRow, CheckpointRow, Event, PlacementDecision
from db.core.rows import Row
from db.write.events import EventRow


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """A placement decision in brief. Times are milliseconds since 1970.

    run, branch: the run and branch that produced the iteration.
    """

    run: str
    branch: int
    iteration: int
    seq: int
    decision: Mapping[str, Any]
    prediction: Mapping[str, Any]
    reason: str
    outcome: Mapping[str, Any] | None
    recorded_at: int


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A failed attempt. Times are milliseconds since 1970."""

    branch: int
    iteration: int
    phase: str
    number: int
    term: int
    planned_at: int
    ended_at: int
    failure_class: str
    reason: str | None


class Browser:
    """Reads pages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def decisions(self, run: str, limit: int, before: int | None = None) -> list[DecisionLine]:
        """Returns placement decisions of the current line, newest iteration first. Raises `RunNotFound`.

        before: only iterations below this one.

        A page always includes all decisions of its last iteration, so it may be longer than `limit`.
        """
        table = PlacementDecision
        found = list[DecisionLine]()
        columns = [table.__table__.columns[name] for name in get_type_hints(DecisionLine)]
        with self._database.read() as connection:
            for span in reversed(ancestry(connection, run)):
                last = span.last if before is None else min(span.last, before - 1)
                line = (
                    select(*columns)
                    .where(table.run == span.run, table.branch == span.branch)
                    .order_by(table.iteration.desc(), table.seq.desc())
                )
                within = table.iteration.between(span.first, last)
                found += _whole_page(
                    connection=connection,
                    query=line,
                    within=within,
                    kind=DecisionLine,
                    column=table.iteration,
                    limit=limit - len(found),
                )
                if len(found) >= limit:
                    break
        return found

    def faults(self, run: str, limit: int, before: int | None = None) -> list[FaultRow]:
        """Returns failed attempts on all branches, newest first.

        before: only attempts that ended before this time, in milliseconds since 1970.

        Attempts that ended together with the last one are included, so a page may be longer than `limit`.
        """
        table = AttemptRow
        columns = [table.__table__.columns[name] for name in get_type_hints(FaultRow)]
        failed = (
            select(*columns).where(table.run == run, table.failure_class.is_not(None)).order_by(table.ended_at.desc())
        )
        within = true() if before is None else table.ended_at < before
        with self._database.read() as connection:
            return _whole_page(
                connection=connection, query=failed, within=within, kind=FaultRow, column=table.ended_at, limit=limit
            )

    def events(self, run: str, limit: int, before: int | None = None, kinds: Sequence[str] = ()) -> list[EventRow]:
        """Returns links of the audit chain, newest first.

        before: only links with a smaller number.
        kinds: only these kinds; all if empty.
        """
        query = select(*Event.__table__.columns).where(Event.run == run)
        if kinds:
            query = query.where(Event.kind.in_(kinds))
        if before is not None:
            query = query.where(Event.seq < before)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(Event.seq.desc()).limit(limit))
            return [EventRow(**row._mapping) for row in rows]

    def checkpoints(self, run: str, limit: int, before: tuple[int, int, int] | None = None) -> list[CheckpointRow]:
        """Returns the run's own checkpoints, newest iteration first.

        before: only checkpoints that come after this (iteration, branch, term) in the listing.
        """
        key = (CheckpointRow.iteration, CheckpointRow.branch, CheckpointRow.term)
        columns = CheckpointRow.__table__.columns
        query = select(*columns).where(CheckpointRow.run == run)
        if before is not None:
            query = query.where(tuple_(*key) < before)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(*(column.desc() for column in key)).limit(limit))
            return [CheckpointRow(**row._mapping) for row in rows]


def _whole_page(
    connection: Connection, query: Select[Any], within: ColumnElement[bool], kind: type[Row], column: Any, limit: int
) -> list[Row]:
    """Returns the first rows of a query within a range of the column by which they are paged.

    Rows beyond the limit are included if they equal the last row in that column.
    """
    rows = [kind(**row._mapping) for row in connection.execute(query.where(within).limit(limit))]
    if len(rows) < limit:
        return rows
    last = getattr(rows[-1], column.key)
    # This query leaves the range out: with it, SQLite would scan the whole range instead of looking up the equal rows.
    equal = [kind(**row._mapping) for row in connection.execute(query.where(column == last))]
    return [row for row in rows if getattr(row, column.key) != last] + equal
