"""The database below the ledger: connections, transactions, the clock, and the fence that guards the writes of a lease's holder.

Writers on SQLite begin IMMEDIATE, so they queue instead of failing halfway; on PostgreSQL they lock the rows
that their decision depends on. Readers see one consistent state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Select,
    bindparam,
    create_engine,
    event,
    literal,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError, StatementError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.functions import FunctionElement

from db.core.errors import Fenced, LedgerAddressError, LedgerError, LedgerFull, LedgerReadOnly, LedgerUnavailable
from db.core.made_once import given, matching
from db.core.models import Lease, RunTable
from db.core.subjects import RUN, in_words, kind_of, name_of, of_run

BUSY_TIMEOUT_MS = 30_000
IDLE_IN_TRANSACTION_MS = 5_000
"""Time limit for idle transactions.

Without it, a driver suspended within a transaction would hold its row locks, and so block the run, until the driver is
resumed.
"""
NETWORK = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Settings with which a connection notices within seconds that the server's host has disappeared.

The unit of tcp_user_timeout is milliseconds.
"""
SERVER_SETTINGS = {
    f"tcp_{name.removeprefix('tcp_')}": str(value) for name, value in NETWORK.items() if name != "connect_timeout"
}
"""The same for the server, which notices that this host has disappeared, and gives up its locks.

The time limit for idle transactions does not see a host that is lost in the middle of a statement.
"""
FULL = ("SQLITE_FULL", "53100")
"""The error codes of SQLite and PostgreSQL (SQLSTATE disk_full) for a full disk."""
UNWRITABLE = ("SQLITE_READONLY", "SQLITE_CANTOPEN")
"""Prefixes of SQLite's error names for a file or folder without write permission.

The errors with these names have other causes too, such as a deleted file, so `_unwritable` checks the permissions.
"""
READ_ONLY = "ledger_read_only"
SYNCED_LATER = "ledger_synced_later"
SYNCHRONOUS = "synchronous"
"""SQLite's setting of a connection: FULL waits for the disk at each commit, NORMAL leaves that to a later one."""
RIGHT = "expected postgresql://user@host/database or sqlite:////folder/ledger.db"

Clock = Callable[[], "ColumnElement[int] | int"]
"""Returns the time in milliseconds since 1970, either as a value or as SQL for the database to evaluate."""
Measured = Callable[[str], AbstractContextManager[object]]
"""Returns what a transaction runs inside, so that its time can be measured: for `read` or `write`."""


class DatabaseTime(FunctionElement[int]):
    """The database's own clock, so that two hosts agree on when a lease expires; milliseconds since 1970."""

    type = BigInteger()
    inherit_cache = True


@compiles(DatabaseTime, "sqlite")
def _sqlite_time(*_: Any, **__: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@compiles(DatabaseTime, "postgresql")
def _postgresql_time(*_: Any, **__: Any) -> str:
    # Not now(), which returns when the transaction began: it may since have waited for a lock.
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write to the subject of a lease (`db.core.subjects`), valid as long as its term is the newest."""

    subject: str
    term: int

    @classmethod
    def of_run(cls, run: str, term: int) -> Fence:
        """Returns the fence of a run's driver."""
        return cls(of_run(run), term)

    @property
    def run(self) -> str:
        """The run whose lease it is. Raises `Fenced` if it is the lease of something else, which gives no right to a run."""
        return self.name_as(RUN)

    def require_run(self, run: str | None) -> None:
        """Raises `Fenced` unless it is the lease of this run."""
        if self.run != run:
            raise Fenced(f"the lease of {in_words(self.subject)} gives no right to write to run {run}")

    def name_as(self, kind: str) -> str:
        """Returns the name of the subject, which must be of a kind. Raises `Fenced`, so that nothing is written."""
        if kind_of(self.subject) != kind:
            raise Fenced(
                f"the lease of {in_words(self.subject)} is not that of a {kind}: it gives no right to write there"
            )
        return name_of(self.subject)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be represented as JSON")


def canonical_json(value: object) -> str:
    """Returns JSON with sorted keys and no spaces.

    Raises `LedgerError` for NaN, infinity and values that JSON cannot represent.
    """
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
        )
    except (ValueError, TypeError) as error:
        raise LedgerError(f"a value cannot be written to the ledger as JSON: {error}") from error


class Database:
    """Transactions on one database. Threads may share it; processes may not, so open a new one after a fork."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.measured: Measured = nullcontext
        self._clock = clock
        reading: dict[str, Any] = {READ_ONLY: True}
        if engine.dialect.name == "postgresql":
            reading |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reader = engine.execution_options(**reading)
        self._synced_later = engine.execution_options(**{SYNCED_LATER: True})

    def now(self) -> ColumnElement[int]:
        """Returns the current time as an SQL expression."""
        time = self._clock()
        return literal(time, BigInteger) if isinstance(time, int) else time

    def time(self, connection: Connection) -> int:
        """Returns the current time in milliseconds since 1970."""
        return int(connection.execute(select(self.now())).scalar_one())

    @contextmanager
    def write(self, synced: bool = True) -> Iterator[Connection]:
        """Opens a transaction that is applied as a whole or not at all.

        synced: whether it is durable when it ends. If not, others see it at once, and it outlives this process; that it
            outlives the machine is only sure once a later transaction is durable, for the order is kept.

        Raises `LedgerUnavailable` or `LedgerFull` if the database fails.
        """
        engine = self.engine if synced else self._synced_later
        with self.measured("write"), _translated(self.engine), engine.begin() as connection:
            if not synced and connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            yield connection

    @contextmanager
    def read(self, patience_ms: int = IDLE_IN_TRANSACTION_MS) -> Iterator[Connection]:
        """Opens a consistent view that never waits for a writer, on SQLite (WAL) or PostgreSQL.

        patience_ms: time between two statements after which PostgreSQL ends the transaction; it holds no row locks.
        """
        with self.measured("read"), _translated(self.engine), self._reader.begin() as connection:
            if patience_ms != IDLE_IN_TRANSACTION_MS and connection.dialect.name == "postgresql":
                setting = text("SELECT set_config('idle_in_transaction_session_timeout', :time, true)")
                connection.execute(setting, {"time": str(patience_ms)})
            yield connection

    @contextmanager
    def outside(self) -> Iterator[Connection]:
        """Opens a connection without a transaction, for statements of SQLite that refuse to run in one."""
        with _translated(self.engine), self._reader.connect() as connection:
            connection.exec_driver_sql("COMMIT")  # of the transaction that every connection begins
            yield connection

    @contextmanager
    def fenced(self, fence: Fence, synced: bool = True) -> Iterator[tuple[Connection, int]]:
        """Opens a holder's transaction and yields its connection and the time.

        synced: as for `write`.

        Raises `Fenced` before anything is written if the fence's term is old. The lease's row stays locked
        until the end, so its subject cannot be taken over in between.
        """
        with self.write(synced) as connection:
            yield connection, self._check(connection, fence)

    @cached_property
    def _time(self) -> ColumnElement[int]:
        """The current time in statements that are made once."""
        now = self._clock()
        return bindparam("now", callable_=self._clock, type_=BigInteger) if isinstance(now, int) else now

    @cached_property
    def locked_run(self) -> Select[Any]:
        """The statement that reads a run's row with the time as `now`, and locks it. Its parameter is `at_id`."""
        row = select(*RunTable.__table__.columns, self._time.label("now")).where(*matching(RunTable, "id"))
        return row.with_for_update(key_share=True)

    @cached_property
    def _lease(self) -> Select[int, str | None, int]:
        """The statement that reads a lease with the time, and locks it. Made once: each write begins with it."""
        held = select(Lease.term, Lease.holder, self._time.label("now")).where(*matching(Lease, "subject"))
        return held.with_for_update(key_share=True)

    def _check(self, connection: Connection, fence: Fence) -> int:
        lease = connection.execute(self._lease, given(subject=fence.subject)).one_or_none()
        words = in_words(fence.subject)
        if lease is None:
            raise Fenced(f"{words} is not in this ledger")
        if lease.term != fence.term:
            raise Fenced(f"{words}: term {fence.term} has ended; term {lease.term} holds the lease")
        if lease.holder is None:
            raise Fenced(f"{words}: the lease of term {fence.term} was released")
        return int(lease.now)


@contextmanager
def _translated(engine: Engine) -> Iterator[None]:
    try:
        yield
    except (IntegrityError, ProgrammingError):
        raise  # the name of a new run was taken concurrently, or it is a defect that a retry would not fix
    except DataError as error:
        raise LedgerError(f"a value cannot be written to {_name(engine)}: {error.orig}") from error
    except DBAPIError as error:
        raise _failure(engine, error) from error
    except StatementError as error:
        if isinstance(error.orig, LedgerError):
            raise error.orig from None
        raise


def _failure(engine: Engine, error: DBAPIError) -> LedgerUnavailable:
    """Translates the database's failure into one of the ledger's errors."""
    text = " ".join(f"{_name(engine)}: {error.orig}".split())
    said = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None) or ""
    if said in FULL:
        return LedgerFull(text)
    if said.startswith(UNWRITABLE) and (place := _unwritable(Path(engine.url.database or ""))):
        return LedgerReadOnly(
            f"{_name(engine)}: {place} is not writable; expected a file and a folder that this user can write to"
        )
    return LedgerUnavailable(text)


def _unwritable(file: Path) -> Path | None:
    """Returns the path to which this user cannot write; None if there is none.

    This is either the database file, or its folder, where SQLite creates further files.
    """
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return file.parent
    return file if file.exists() and not os.access(file, os.R_OK | os.W_OK) else None


def _name(engine: Engine) -> str:
    return f"the ledger {engine.url.render_as_string()}"


def database_url(address: str | Path) -> URL:
    """Returns the address of a database from a DSN or the path of an SQLite file.

    Raises `LedgerAddressError` for other kinds of database.
    """
    if isinstance(address, Path) or "://" not in address:
        return URL.create("sqlite", database=str(address))
    return dsn_url(address)


def dsn_url(dsn: str) -> URL:
    """Returns the address of a database from a DSN.

    Raises `LedgerAddressError`, whose message quotes nothing that may be a password.
    """
    try:
        url = make_url(dsn)
    except (ArgumentError, ValueError) as error:
        raise LedgerAddressError(f"the ledger's DSN cannot be parsed; {RIGHT}") from error
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        raise LedgerAddressError(f"the ledger supports sqlite and postgresql, not {url.get_backend_name()}; {RIGHT}")
    # A relative path would mean another file in each working folder; `:memory:`, another database in each process.
    if url.host is not None or not Path(url.database or "").is_absolute():
        raise LedgerAddressError(f"the ledger's DSN does not contain the absolute path of an SQLite file; {RIGHT}")
    return url.set(drivername="sqlite")


def open_engine(url: URL) -> Engine:
    """Returns an engine with the settings that the ledger relies on; it connects on first use.

    Raises `LedgerAddressError` if the database's driver is not installed.
    """
    if url.get_backend_name() == "postgresql":
        network = {name: value for name, value in NETWORK.items() if name not in url.query}
        # pool_pre_ping replaces a pooled connection that the server has closed in the meantime.
        try:
            engine = create_engine(url, json_serializer=canonical_json, pool_pre_ping=True, connect_args=network)
        except ModuleNotFoundError as error:
            right = "pip install 'yatt[postgresql]'"
            raise LedgerAddressError(f"a ledger on postgresql needs {error.name}: {right}") from error
        event.listen(engine, "connect", _set_up_postgresql)
        # Many rows are one statement. The driver's own way sends them without waiting for answers, and between two of them
        # the server does not consider the transaction idle.
        engine.dialect.use_insertmanyvalues_wo_returning = True
        return engine
    engine = create_engine(url, json_serializer=canonical_json)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_postgresql(connection: Any, _: ConnectionPoolEntry) -> None:
    settings = {
        "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
        "lock_timeout": str(BUSY_TIMEOUT_MS),
        **SERVER_SETTINGS,
    }
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS setting (name, value)",
            (list(settings), list(settings.values())),
        )
        # Acknowledged writes must be durable; settings stronger than "on" are left to the server's administrator.
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
    connection.commit()


def _set_up_sqlite(connection: Any, entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins transactions
    entry.info[SYNCHRONOUS] = "FULL"
    cursor = connection.cursor()
    for setting in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",  # first, because changing the journal mode may have to wait
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(READ_ONLY, False):
        connection.exec_driver_sql("BEGIN")
        return
    wanted = "NORMAL" if options.get(SYNCED_LATER, False) else "FULL"
    # The setting belongs to the connection, which a pool keeps, and cannot be changed within a transaction.
    if connection.info[SYNCHRONOUS] != wanted:
        connection.exec_driver_sql(f"PRAGMA synchronous={wanted}")
        connection.info[SYNCHRONOUS] = wanted
    connection.exec_driver_sql("BEGIN IMMEDIATE")
