"""Prefect's command line with small page caches of SQLite: what Prefect servers are started by.

Consumes the arguments of `prefect`. Prefect asks SQLite to keep 80 MB of pages for each of up to 15 connections. A long run
fills them little by little: the server would grow by 5 KB a task run for days. With SQLite's own default it stays as it is, and
takes no more time.
"""

from __future__ import annotations

from prefect.cli import app
from sqlalchemy import event
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.pool import ConnectionPoolEntry, Pool

CACHE_KIB = 2000
"""Of each connection."""
_DONE = "small cache"


def keep_caches_small() -> None:
    """For all connections to SQLite that this process opens from now on."""
    # When a connection is first lent, since what Prefect asks for when one is made comes behind any listener of ours.
    event.listen(Pool, "checkout", _shrink)


def _shrink(connection: object, record: ConnectionPoolEntry, _: object) -> None:
    if isinstance(connection, AsyncAdapt_aiosqlite_connection) and _DONE not in record.info:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        cursor.close()
        record.info[_DONE] = True


if __name__ == "__main__":
    keep_caches_small()
    app()
