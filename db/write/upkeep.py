"""Keeps the database quick and small: statistics for its planner, and the space of deleted rows.

Consumes and changes no row. PostgreSQL reclaims space by itself (autovacuum).
"""

from __future__ import annotations

from sqlalchemy import text

from db.core.engine import Database

WORTHWHILE = 0.2
"""Fraction of free pages from which an SQLite file is rewritten."""


class Upkeep:
    """Upkeep of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def tidy(self, idle: bool) -> str:
        """Updates the planner's statistics; returns what was done.

        idle: nobody drives a run, so that an SQLite file may be locked for the time that rewriting it takes.

        Raises `LedgerUnavailable`.
        """
        with self._database.write() as connection:
            connection.execute(text("ANALYZE"))
        if self._database.engine.dialect.name != "sqlite":
            return "statistics updated"
        done = "statistics updated, log written back"
        with self._database.outside() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")  # leaves what a reader still needs
            free, pages = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("freelist_count", "page_count")
            )
            if idle and free > WORTHWHILE * pages:
                connection.exec_driver_sql("VACUUM")
                done += f", {free} of {pages} pages freed"
        return done
