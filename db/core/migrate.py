"""Migrates a database to the tables that this code works with, and refuses one at an unknown migration.

Alembic is imported only if there is something to migrate, because opening a ledger must be fast.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from db.core.engine import Database
from db.core.errors import LedgerVersionError

HEAD = "0010"
"""The newest migration; a test compares it with the files."""
MIGRATIONS = Path(__file__).parent.with_name("migrations")
ADVISORY_LOCK = 0x79617474
RESTORING = "restoring-"
"""Beginning of the revision of a ledger that `yatt restore` has filled, until its home is complete."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What was done to a ledger.

    before: the migration that it was at; None if it contained no ledger.
    after: the one that it is at.
    """

    before: str | None
    after: str


def ensure_current(database: Database, migrate: bool) -> Migration:
    """Brings the database to `HEAD`, migrating it if allowed; returns what was done. Raises `LedgerVersionError`.

    A migration is one transaction, so that other processes see the ledger before or after it. On PostgreSQL those that
    migrate at once wait for each other; on SQLite they wait as all writers do.
    """
    with database.read() as connection:
        revision = current_revision(connection)
    if revision == HEAD:
        return Migration(HEAD, HEAD)
    _refuse_unfinished(database, revision)
    if not migrate:
        raise LedgerVersionError(_other_version(database, revision))
    with database.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        revision = current_revision(connection)
        _refuse_unfinished(database, revision)
        if revision != HEAD:
            upgrade(connection, _name(database))
    return Migration(revision, HEAD)


def migrations_after(revision: str | None) -> list[str]:
    """Returns what each migration after one of them adds, in words; after None: what all do."""
    files = sorted(MIGRATIONS.glob("versions/[0-9]*.py"))
    found = [file for file in files if revision is None or file.name.partition("_")[0] > revision]
    return [(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").rstrip(".") for file in found]


def current_revision(connection: Connection) -> str | None:
    """Returns the migration that the database is at; None if it contains no ledger."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def upgrade(connection: Connection, name: str, to: str | None = None) -> None:
    """Applies the migrations up to one of them, in a transaction of the caller.

    name: of the ledger, for messages.
    to: by default the newest one.

    Raises `LedgerVersionError` if the database is at a migration that this version does not know, or `to` is one.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    to = to or HEAD
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    for revision in (current_revision(connection), to):
        if revision is not None and revision not in known:
            raise LedgerVersionError(
                f"{name} is at migration {revision}, which this version of YATT does not know (its newest is {HEAD}): "
                "a newer version wrote it; use that one"
            )
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def _other_version(database: Database, revision: str | None) -> str:
    if revision is None:
        return f"{_name(database)} contains no ledger; this version of YATT works with revision {HEAD}"
    if revision < HEAD:
        right = "`yatt migrate` brings it to that one, while runs go on"
    else:
        right = "it was written by a newer version; use that one"
    return f"{_name(database)} is at revision {revision}; this version of YATT works with revision {HEAD}: {right}"


def _refuse_unfinished(database: Database, revision: str | None) -> None:
    if revision is not None and revision.startswith(RESTORING):
        raise LedgerVersionError(f"{_name(database)} is being restored; repeat the `yatt restore` that was interrupted")


def _name(database: Database) -> str:
    return f"the ledger {database.engine.url.render_as_string()}"
