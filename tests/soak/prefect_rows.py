"""Counts rows of Prefect's database, and ages finished sessions beyond the retention period."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

TABLES = ("flow_run", "task_run", "flow_run_state", "task_run_state", "events", "event_resources")
TIMES = {"flow_run": "end_time", "events": "occurred", "event_resources": "occurred"}
RETENTION = timedelta(days=31)


def rows(database: Path) -> dict[str, int]:
    """Returns the number of rows by table."""
    with closing(sqlite3.connect(database)) as connection:
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES}


def overdue(database: Path) -> int:
    """Returns the number of rows beyond the retention period, plus task runs without a flow run."""
    before = (datetime.now(UTC) - RETENTION + timedelta(days=1)).replace(tzinfo=None).isoformat(" ", "microseconds")
    with closing(sqlite3.connect(database)) as connection:
        late = [
            connection.execute(f"SELECT count(*) FROM {table} WHERE {column} < ?", (before,)).fetchone()[0]
            for table, column in TIMES.items()
        ]
        orphans = "SELECT count(*) FROM task_run WHERE flow_run_id NOT IN (SELECT id FROM flow_run)"
        return sum(late) + int(connection.execute(orphans).fetchone()[0])


def age(database: Path) -> None:
    """Moves all end times back by the retention period. The server must be down."""
    with closing(sqlite3.connect(database)) as connection:
        for table, column in TIMES.items():
            for key, text in connection.execute(
                f"SELECT id, {column} FROM {table} WHERE {column} IS NOT NULL"
            ).fetchall():
                moved = datetime.fromisoformat(text).replace(tzinfo=UTC) - RETENTION
                value = moved.replace(tzinfo=None).isoformat(" ", "microseconds")
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (value, key))
        connection.commit()


def size(database: Path) -> int:
    """Returns the database's bytes after a checkpoint of its write-ahead log. The server must be down."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return database.stat().st_size
