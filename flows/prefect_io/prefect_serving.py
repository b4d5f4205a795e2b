"""Prefect's command line with small SQLite page caches, used to start Prefect servers.

Consumes the arguments of `prefect`, and in `TEMPLATES_VARIABLE` the folder with the empty database from which a server's new one
begins (`prefect_template`); without it, the server migrates one. Prefect configures a page cache of 80 MB for each of up to 15
SQLite connections. During a long run, these would fill gradually, and the server would grow by 5 KB per task run for days. With
SQLite's default cache size, the server does not grow and is no slower.
"""

from __future__ import annotations

import os
from pathlib import Path

from prefect.cli import app
from sqlalchemy import event
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.pool import ConnectionPoolEntry, Pool

from flows.prefect_io.prefect_server import DATABASE_VARIABLE, TEMPLATES_VARIABLE, sqlite_file
from flows.prefect_io.prefect_template import begin_database

CACHE_KIB = 2000
"""Page cache of each connection, in KiB."""
_DONE = "small cache"


def keep_caches_small() -> None:
    """Limits the page cache of all SQLite connections that this process opens from now on."""
    # At the first checkout of a connection, since Prefect's own settings on connect are applied after our listeners.
    event.listen(Pool, "checkout", _shrink)


def _shrink(connection: object, record: ConnectionPoolEntry, _: object) -> None:
    if isinstance(connection, AsyncAdapt_aiosqlite_connection) and _DONE not in record.info:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        cursor.close()
        record.info[_DONE] = True


if __name__ == "__main__":
    keep_caches_small()
    if templates := os.environ.get(TEMPLATES_VARIABLE):
        begin_database(sqlite_file(os.environ[DATABASE_VARIABLE]), Path(templates))
    app()
