"""Migrates a database to the tables that this code works with, and refuses one at an unknown migration.

Alembic is imported only if there is something to migrate, because opening a ledger must be fast.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from db.core.engine import Database
from db.core.errors import LedgerVersionError

HEAD = "0006"
"""The newest migration; a test compares it with the files."""
MIGRATIONS = Path(__file__).parent.with_name("migrations")
ADVISORY_LOCK = 0x79617474


def ensure_current(database: Database, migrate: bool) -> None:
    """Brings the database to `HEAD`, migrating it if allowed. Raises `LedgerVersionError`."""
    with database.read() as connection:
        revision = current_revision(connection)
    if revision == HEAD:
        return
    if not migrate:
        known = f"is at revision {revision}" if revision else "contains no ledger"
        raise LedgerVersionError(f"{_name(database)} {known}; this version of YATT works with revision {HEAD}")
    with database.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        revision = current_revision(connection)
        if revision != HEAD:
            _upgrade(connection, revision, _name(database))


def current_revision(connection: Connection) -> str | None:
    """Returns the migration that the database is at; None if it contains no ledger."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def _upgrade(connection: Connection, revision: str | None, name: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise LedgerVersionError(
            f"{name} is at migration {revision}, which this version of YATT does not know (its newest is {HEAD}): "
            "the ledger was written by a newer version; use that one"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def _name(database: Database) -> str:
    return f"the ledger {database.engine.url.render_as_string()}"
