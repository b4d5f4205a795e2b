"""The database under the ledger: opening it, its transactions, its clock, and the fence that guards a driver's writes.

Writers on SQLite begin IMMEDIATE, so that they queue up instead of failing half-way; on PostgreSQL they lock the rows that
they decide on. Readers see one consistent state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Engine, create_engine, event, literal, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError, StatementError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.functions import FunctionElement

from db.core.errors import Fenced, LedgerAddressError, LedgerError, LedgerFull, LedgerReadOnly, LedgerUnavailable
from db.core.models import Lease

BUSY_TIMEOUT_MS = 30_000
IDLE_IN_TRANSACTION_MS = 5_000
"""A driver that is stopped within a transaction would hold its row locks, and with them the run, for as long as it sleeps."""
NETWORK = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""A server whose host went away without a word is noticed within seconds (tcp_user_timeout: milliseconds)."""
FULL = ("SQLITE_FULL", "53100")
"""What SQLite and PostgreSQL (SQLSTATE disk_full) call a full disk."""
UNWRITABLE = ("SQLITE_READONLY", "SQLITE_CANTOPEN")
"""Beginnings of SQLite's error names for a file or folder that may not be written. They have other causes too, such as a file
that is gone, so `_unwritable` looks."""
READ_ONLY = "ledger_read_only"
RIGHT = "right would be postgresql://user@host/database or sqlite:////folder/ledger.db"

Clock = Callable[[], "ColumnElement[int] | int"]
"""Gives the time in milliseconds since 1970: a value, or SQL that the database evaluates."""


class DatabaseTime(FunctionElement[int]):
    """The database's own clock, so that two hosts agree on when a lease expires; milliseconds since 1970."""

    type = BigInteger()
    inherit_cache = True


@compiles(DatabaseTime, "sqlite")
def _sqlite_time(*_: Any, **__: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@compiles(DatabaseTime, "postgresql")
def _postgresql_time(*_: Any, **__: Any) -> str:
    # Not now(): that is the transaction's start, before it waited for a lock.
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write to a run, good as long as its term is the newest."""

    run: str
    term: int


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces. Raises `LedgerError` for NaN, infinity and what has no JSON form."""
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
        )
    except (ValueError, TypeError) as error:
        raise LedgerError(f"cannot be written to the ledger as JSON: {error}") from error


class Database:
    """Transactions on one database. Safe to share between threads, not across a fork."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self._clock = clock
        reading: dict[str, Any] = {READ_ONLY: True}
        if engine.dialect.name == "postgresql":
            reading |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reader = engine.execution_options(**reading)

    def now(self) -> ColumnElement[int]:
        """The clock as SQL."""
        time = self._clock()
        return literal(time, BigInteger) if isinstance(time, int) else time

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction: all of it or nothing. Raises `LedgerUnavailable`, `LedgerFull` when the database fails."""
        with _translated(self.engine), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view; never waits for a writer on SQLite (WAL) or PostgreSQL."""
        with _translated(self.engine), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def fenced(self, fence: Fence) -> Iterator[tuple[Connection, int]]:
        """One transaction of a driver, and the time. Raises `Fenced` before anything is written if its term is old.

        The lease's row stays locked to the end, so nobody can take the run over in between.
        """
        with self.write() as connection:
            yield connection, self._check(connection, fence)

    def _check(self, connection: Connection, fence: Fence) -> int:
        lease = connection.execute(
            select(Lease.term, Lease.holder, self.now().label("now"))
            .where(Lease.run == fence.run)
            .with_for_update(key_share=True)
        ).one_or_none()
        if lease is None:
            raise Fenced(f"run {fence.run} is not in this ledger")
        if lease.term != fence.term:
            raise Fenced(f"run {fence.run}: term {fence.term} is over, term {lease.term} has taken the lease")
        if lease.holder is None:
            raise Fenced(f"run {fence.run}: the lease of term {fence.term} was given back")
        return int(lease.now)


@contextmanager
def _translated(engine: Engine) -> Iterator[None]:
    try:
        yield
    except (IntegrityError, ProgrammingError):
        raise  # a free name that another took; or a defect of ours, which trying again does not mend
    except DataError as error:
        raise LedgerError(f"cannot be written to {_name(engine)}: {error.orig}") from error
    except DBAPIError as error:
        raise _failure(engine, error) from error
    except StatementError as error:
        if isinstance(error.orig, LedgerError):
            raise error.orig from None
        raise


def _failure(engine: Engine, error: DBAPIError) -> LedgerUnavailable:
    """The database's failure as one of our errors."""
    text = f"{_name(engine)}: {error.orig}"
    said = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None) or ""
    if said in FULL:
        return LedgerFull(text)
    if said.startswith(UNWRITABLE) and (place := _unwritable(Path(engine.url.database or ""))):
        return LedgerReadOnly(
            f"{_name(engine)}: {place} is not writable; right would be a file, in a folder, that this user may write"
        )
    return LedgerUnavailable(text)


def _unwritable(file: Path) -> Path | None:
    """What this user may not write: the folder, where SQLite makes files of its own, or the file; None for neither."""
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return file.parent
    return file if file.exists() and not os.access(file, os.R_OK | os.W_OK) else None


def _name(engine: Engine) -> str:
    return f"the ledger {engine.url.render_as_string()}"


def database_url(address: str | Path) -> URL:
    """The address of a database from a DSN, or from the path of an SQLite file. Raises `LedgerAddressError` for other kinds."""
    if isinstance(address, Path) or "://" not in address:
        return URL.create("sqlite", database=str(address))
    return dsn_url(address)


def dsn_url(dsn: str) -> URL:
    """The address of a database from a DSN. Raises `LedgerAddressError`, quoting nothing that may be a password."""
    try:
        url = make_url(dsn)
    except (ArgumentError, ValueError) as error:
        raise LedgerAddressError(f"the ledger's DSN cannot be read; {RIGHT}") from error
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        raise LedgerAddressError(f"the ledger runs on sqlite and postgresql, not on {url.get_backend_name()}; {RIGHT}")
    # A relative path is another file in each working folder, and :memory: another database in each process.
    if url.host is not None or not Path(url.database or "").is_absolute():
        raise LedgerAddressError(f"the ledger's DSN names no SQLite file by its absolute path; {RIGHT}")
    return url.set(drivername="sqlite")


def open_engine(url: URL) -> Engine:
    """An engine with the settings that the ledger relies on; connects when first used.

    Raises `LedgerAddressError` where the database's driver is not installed.
    """
    if url.get_backend_name() == "postgresql":
        network = {name: value for name, value in NETWORK.items() if name not in url.query}
        # A connection that the server closed meanwhile is replaced when it is taken from the pool.
        try:
            engine = create_engine(url, json_serializer=canonical_json, pool_pre_ping=True, connect_args=network)
        except ModuleNotFoundError as error:
            right = "pip install 'yatt[postgresql]'"
            raise LedgerAddressError(f"the ledger on postgresql needs {error.name}; right would be: {right}") from error
        event.listen(engine, "connect", _set_up_postgresql)
        return engine
    engine = create_engine(url, json_serializer=canonical_json)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_postgresql(connection: Any, _: ConnectionPoolEntry) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, false), set_config('lock_timeout', %s, false)",
            (str(IDLE_IN_TRANSACTION_MS), str(BUSY_TIMEOUT_MS)),
        )
        # What is acknowledged has to stay; stronger settings than "on" are left to the server's administrator.
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
    connection.commit()


def _set_up_sqlite(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # we begin transactions ourselves
    cursor = connection.cursor()
    for setting in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",  # first: changing the journal's mode may have to wait
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    read_only = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
