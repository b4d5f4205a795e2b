"""Evaluations of suites: rows that are written once, each with a link of the run's audit chain.

Consumes the figures and results of an evaluation. The same weights on the same suite are one row, so that whoever evaluates
may be killed and evaluate again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select

from db.core.engine import Database
from db.core.suite_models import SuiteEvaluation as Table
from db.write.events import append, lock_run

EVALUATED = "suite_evaluated"
"""The kind of the events that record an evaluation."""


@dataclass(frozen=True, slots=True)
class SuiteRow:
    """An evaluation; the fields are the table's columns. number, at and seq are 0 before it is written."""

    run: str
    suite: str
    digest: str
    suite_spec: Mapping[str, Any]
    branch: int
    iteration: int
    weights_digest: str
    figures: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    by: str
    seconds: float
    number: int = 0
    at: int = 0
    seq: int = 0


class Suites:
    """Writes and reads evaluations of suites."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, row: SuiteRow) -> SuiteRow:
        """Adds an evaluation, or returns the one that there is of these weights. Raises `RunNotFound`."""
        with self._database.write() as connection:
            head = lock_run(connection, self._database, row.run)
            known = _find(connection, row.run, row.digest, row.weights_digest)
            if known is not None:
                return known
            last = select(func.max(Table.number)).where(Table.run == row.run)
            number = 1 + (connection.execute(last).scalar_one() or 0)
            body = {
                "number": number,
                "suite": row.suite,
                "digest": row.digest,
                "branch": row.branch,
                "iteration": row.iteration,
                "weights_digest": row.weights_digest,
                "by": row.by,
            }
            link = append(connection, head, EVALUATED, body)
            values = {name: getattr(row, name) for name in SuiteRow.__slots__}
            connection.execute(insert(Table), values | {"number": number, "at": link.at, "seq": link.seq})
            found = _find(connection, row.run, row.digest, row.weights_digest)
            assert found is not None, "the row was written in this transaction"
            return found

    def find(self, run: str, digest: str, weights_digest: str) -> SuiteRow | None:
        """Returns the evaluation of some weights on a suite; None if there is none."""
        with self._database.read() as connection:
            return _find(connection, run, digest, weights_digest)

    def specs(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Returns the run and the suite's spec of the newest evaluation of each suite of each run."""
        newest = select(Table.run, func.max(Table.number).label("number")).group_by(Table.run, Table.suite).subquery()
        query = select(Table.run, Table.suite_spec).join(
            newest, (Table.run == newest.c.run) & (Table.number == newest.c.number)
        )
        with self._database.read() as connection:
            return [(row.run, row.suite_spec) for row in connection.execute(query.order_by(Table.run, Table.number))]

    def of(self, run: str, suite: str | None = None) -> list[SuiteRow]:
        """Returns a run's evaluations, oldest first; of one suite if it is named."""
        query = select(*Table.__table__.columns).where(Table.run == run).order_by(Table.number)
        with self._database.read() as connection:
            rows = connection.execute(query if suite is None else query.where(Table.suite == suite))
            return [SuiteRow(**row._mapping) for row in rows]


def _find(connection: Connection, run: str, digest: str, weights_digest: str) -> SuiteRow | None:
    same = (Table.run == run, Table.digest == digest, Table.weights_digest == weights_digest)
    row = connection.execute(select(*Table.__table__.columns).where(*same)).one_or_none()
    return None if row is None else SuiteRow(**row._mapping)
