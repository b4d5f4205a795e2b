"""Loads the rows of a cut into an empty database, as one transaction: the database has the whole ledger, or none.

Consumes rows by the kinds of their columns, at the migration at which they were written; later migrations are applied to
them then. Produces a ledger in which nobody drives anything, as after every driver was killed: leases are free, sessions
and attempts closed, devices of the queue given back. Until `finish`, its revision says that it is being restored, and
every other process refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Table, insert, text

from db.core.engine import Clock, Database, DatabaseTime, database_url, open_engine
from db.core.errors import LedgerVersionError
from db.core.migrate import ADVISORY_LOCK, HEAD, RESTORING, current_revision, upgrade
from db.core.models import Base
from db.portable.cut import TableHead
from db.portable.settle import BackupOrigin, settle
from db.portable.values import TYPES, from_json

ROWS_AT_ONCE = 500
ROWS = "the exported ledger"
Tables = Iterable[tuple[TableHead, Iterable[Sequence[Any]]]]


@dataclass(frozen=True, slots=True)
class Loading:
    """A database that is being filled.

    token: identifies this restoration, so that a repetition knows its own work; up to 16 characters.
    """

    address: str
    token: str

    @property
    def revision(self) -> str:
        """What the database has as its revision until `finish`."""
        return RESTORING + self.token


def is_loaded(loading: Loading) -> bool:
    """Returns True if the rows are in the database already, False if it is empty.

    Raises `LedgerVersionError` if it contains another ledger.
    """
    url = database_url(loading.address)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return False  # asking would create the file
    with _opened(loading) as database, database.read() as connection:
        revision = current_revision(connection)
        if revision is None or revision == loading.revision:
            return revision is not None
    raise LedgerVersionError(
        f"the ledger {database.engine.url.render_as_string()} is not empty (revision {revision}); rows are restored into "
        "an empty database only: create a new one, or name another with --ledger"
    )


def load(loading: Loading, revision: str, tables: Tables, origin: BackupOrigin, clock: Clock = DatabaseTime) -> None:
    """Fills an empty database.

    revision: the migration at which the rows were written.
    tables: in an order in which each refers to earlier ones only.
    origin: where the rows come from.

    Raises `LedgerVersionError` for rows of a newer version, and what `tables` raises; the database is then empty still.
    """
    with _opened(loading, clock) as database, database.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        upgrade(connection, ROWS, revision)
        for head, rows in tables:
            insert_rows(connection, head, rows)
        upgrade(connection, ROWS)
        settle(connection, database, origin)
        if connection.dialect.name == "postgresql":
            reset_sequences(connection, Base.metadata.tables)
        _set_revision(connection, loading.revision)


def finish(loading: Loading) -> None:
    """Opens the ledger to everybody; safe to repeat."""
    with _opened(loading) as database, database.write() as connection:
        if current_revision(connection) == loading.revision:
            _set_revision(connection, HEAD)


@contextmanager
def _opened(loading: Loading, clock: Clock = DatabaseTime) -> Iterator[Database]:
    database = Database(open_engine(database_url(loading.address)), clock)
    try:
        yield database
    finally:
        database.engine.dispose()


def insert_rows(connection: Connection, head: TableHead, rows: Iterable[Sequence[Any]]) -> None:
    """Inserts rows by the kinds of their columns."""
    columns = [Column(name, TYPES[kind]) for name, kind in head.columns.items()]
    table = Table(head.name, MetaData(), *columns)
    named = _named(head.columns, rows)
    while some := list(islice(named, ROWS_AT_ONCE)):
        connection.execute(insert(table), some)


def _named(columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {name: from_json(kind, value) for (name, kind), value in zip(columns.items(), row, strict=True)}


def reset_sequences(connection: Connection, tables: Iterable[str]) -> None:
    """Has PostgreSQL number new rows of some tables after the loaded ones; SQLite does so by itself."""
    for table in (Base.metadata.tables[name] for name in tables):
        column = table.autoincrement_column
        if column is None:
            continue
        names = {"table": table.name, "column": column.name}
        found = connection.execute(text("SELECT pg_get_serial_sequence(:table, :column)"), names).scalar_one()
        if found is None:
            continue
        newest = f'SELECT max("{column.name}") FROM "{table.name}"'
        connection.execute(
            text(f"SELECT setval(:sequence, ({newest})) WHERE ({newest}) IS NOT NULL"), {"sequence": found}
        )


def _set_revision(connection: Connection, revision: str) -> None:
    connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
