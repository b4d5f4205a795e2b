"""Makes the empty ledgers of tests from the statements of one that was migrated, which takes a fraction of the time.

Consumes and changes `db.core.migrate` of this process. The first empty SQLite ledger of a process is migrated as the product
does it; the others get the same tables by the same statements. Ledgers that exist, and those on PostgreSQL, are migrated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from sqlalchemy import Connection, inspect

from db.core import migrate

BOUNDS = ("BEGIN TRANSACTION;", "COMMIT;")
_migrated = migrate.upgrade
_statements: list[str] = []


def upgrade(connection: Connection, name: str, to: str | None = None) -> None:
    """Does what `db.core.migrate.upgrade` does."""
    is_empty = to is None and connection.dialect.name == "sqlite" and not inspect(connection).get_table_names()
    if is_empty and _statements:
        for statement in _statements:
            connection.exec_driver_sql(statement)
        return
    _migrated(connection, name, to)
    if is_empty:
        dumped = connection.connection.driver_connection.iterdump()  # type: ignore[union-attr]
        _statements.extend(statement for statement in dumped if statement not in BOUNDS)


@contextmanager
def made_from_statements() -> Iterator[None]:
    """Makes the empty ledgers of this process so, as long as the block lasts."""
    with mock.patch.object(migrate, "upgrade", upgrade):
        yield
