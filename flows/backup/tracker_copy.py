"""A copy of MLflow's store that belongs to a backup: its SQLite database, and the files of its artifacts.

Consumes the database while MLflow writes to it, by SQLite's own backup. Produces a database whose addresses of files are
rewritten when the home is restored under another path. A store on another database is not copied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from flows.run.home import Home
from yatt_core.errors import InfrastructureError

BUSY_SECONDS = 60.0
SQLITE = "sqlite:///"
NAME = "mlflow.db"
ARTIFACTS = "artifacts"


def tracked_database(home: Home) -> Path | None:
    """Returns the database of MLflow in the home folder; None if MLflow has its store elsewhere, or none yet."""
    path = home.folder / NAME
    own = home.mlflow_store == f"{SQLITE}{path}"
    return path if own and path.is_file() else None


def copy_database(source: Path, target: Path) -> None:
    """Copies an SQLite database as of one moment, while others write to it. Raises `InfrastructureError`."""
    try:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as origin,
            closing(sqlite3.connect(target)) as copy,
        ):
            origin.backup(copy)
    except sqlite3.Error as error:
        raise InfrastructureError(f"{source}: cannot be copied: {error}") from error


def artifact_files(home: Home) -> Iterator[str]:
    """Yields MLflow's files, as paths relative to the home."""
    for path in sorted((home.folder / ARTIFACTS).rglob("*")):
        if path.is_file():
            yield path.relative_to(home.folder).as_posix()


def move_addresses(database: Path, old: Path, new: Path) -> None:
    """Rewrites the addresses of files below the old home, in all tables. Raises `InfrastructureError`."""
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                for _, column, *_ in connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall():
                    _move(connection=connection, table=table, column=column, old=old, new=new)
    except sqlite3.Error as error:
        raise InfrastructureError(f"{database}: its addresses cannot be rewritten: {error}") from error


def _move(connection: sqlite3.Connection, table: str, column: str, old: Path, new: Path) -> None:
    """Replaces a path where an address begins with it: as `file://...`, alone, or in quotes within JSON."""
    name = _quoted(table)
    place = _quoted(column)
    for before in ("file://", '"'):
        values = {"old": f"{before}{old}/", "new": f"{before}{new}/"}
        where = f"typeof({place}) = 'text' AND instr({place}, :old)"
        connection.execute(f"UPDATE {name} SET {place} = replace({place}, :old, :new) WHERE {where}", values)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
