"""A consistent cut of the ledger: every row of every table as of one moment, and the files that these rows name.

Consumes one read transaction, REPEATABLE READ on PostgreSQL and a read transaction on SQLite (WAL), so that drivers go
on writing while it is read. Produces lines (`lines.py`) and names of files. It holds no lock that a writer waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, select

from db.core.engine import Database
from db.core.migrate import HEAD
from db.core.models import AttemptRow, Base, CheckpointRow, Choice, Event, Pipeline, Revision, RunTable, Shard
from db.portable.lines import line_of
from db.portable.values import kinds_of, to_json

ROWS_AT_ONCE = 1000
PATIENCE_MS = 600_000
"""Time for which PostgreSQL keeps the transaction while rows are written to a slow disk."""


@dataclass(frozen=True, slots=True)
class TableHead:
    """An exported table.

    columns: the kind of each column (`values.py`), in order.
    """

    name: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NamedFolder:
    """A folder that a row names.

    manifest_sha256: of its manifest.
    """

    run: str
    branch: int
    iteration: int
    folder: str
    manifest_sha256: str


class Cut:
    """The ledger at one moment; usable while its transaction is open.

    at: the moment by the database's clock, milliseconds since 1970.
    revision: the migration that the tables are at.
    """

    def __init__(self, connection: Connection, at: int) -> None:
        self._connection = connection
        self.at = at
        self.revision = HEAD

    def tables(self) -> Iterator[tuple[TableHead, Iterator[bytes]]]:
        """Yields each table with its lines; a table comes after those that its rows refer to."""
        for table in Base.metadata.sorted_tables:
            yield TableHead(table.name, kinds_of(table)), self._lines(table)

    def _lines(self, table: Any) -> Iterator[bytes]:
        kinds = list(kinds_of(table).values())
        ordered = select(table).order_by(*table.primary_key.columns).execution_options(yield_per=ROWS_AT_ONCE)
        rows = self._connection.execute(ordered)
        for number, row in enumerate(rows, start=1):
            yield line_of(number, [to_json(kind, value) for kind, value in zip(kinds, row, strict=True)])

    def runs(self) -> list[str]:
        """Returns all runs."""
        return list(self._connection.execute(select(RunTable.id).order_by(RunTable.id)).scalars())

    def pipelines(self) -> list[str]:
        """Returns all runs of pipelines."""
        return list(self._connection.execute(select(Pipeline.id).order_by(Pipeline.id)).scalars())

    def checkpoints(self) -> list[NamedFolder]:
        """Returns the kept checkpoints of all runs."""
        return self._folders(CheckpointRow, select(CheckpointRow).where(CheckpointRow.state == "kept"))

    def shards(self) -> list[NamedFolder]:
        """Returns the sealed shards of all runs, including those whose files were deleted since."""
        return self._folders(Shard, select(Shard))

    def specs(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Returns every revision of every spec, each with its run, oldest first."""
        query = select(Revision.run, Revision.spec).order_by(Revision.run, Revision.revision)
        return [(row.run, row.spec) for row in self._connection.execute(query)]

    def choices(self, name: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Returns the choices of a name, each with its run."""
        query = select(Choice.run, Choice.body).where(Choice.name == name)
        return [(row.run, row.body) for row in self._connection.execute(query)]

    def events(self, kind: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Returns the links of a kind of all audit chains, each with its run."""
        query = select(Event.run, Event.body).where(Event.kind == kind)
        return [(row.run, row.body) for row in self._connection.execute(query)]

    def receipts(self, phase: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Returns the receipts of all finished attempts at a phase, each with its run."""
        query = select(AttemptRow.run, AttemptRow.receipt).where(
            AttemptRow.phase == phase, AttemptRow.receipt.is_not(None)
        )
        return [(row.run, row.receipt) for row in self._connection.execute(query)]

    def _folders(self, table: Any, query: Select[Any]) -> list[NamedFolder]:
        names = [table.run, table.branch, table.iteration, table.folder, table.manifest_sha256]
        rows = self._connection.execute(query.with_only_columns(*names).order_by(*table.__table__.primary_key.columns))
        return [NamedFolder(*row) for row in rows]


class LedgerExports:
    """Cuts of a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def cut(self) -> Iterator[Cut]:
        """Opens a transaction that sees the ledger as of now, however long it takes."""
        with self._database.read(patience_ms=PATIENCE_MS) as connection:
            at = self._database.time(connection)
            # SQLite takes its snapshot with the first read of a table, PostgreSQL with the first statement.
            connection.execute(select(RunTable.id).limit(1)).all()
            yield Cut(connection, at)

    def now(self) -> int:
        """Returns the time by the database's clock, milliseconds since 1970."""
        with self._database.read() as connection:
            return self._database.time(connection)
