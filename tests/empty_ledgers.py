"""Makes the empty ledgers of tests from the statements of one that was migrated, which takes a fraction of the time.

Consumes and changes `db.core.migrate` and `db.core.engine` of this process. The first empty SQLite ledger of a process is
migrated as the product does it; the others get the same tables by the same statements. Ledgers that exist, and those on
PostgreSQL, are migrated. All SQLite ledgers of a process share what SQLAlchemy has made of its statements, which each would
compile anew: a test has a ledger or two, a product's process one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from sqlalchemy import Connection, Engine, create_engine, inspect

from db.core import engine as database
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


class Compiled(dict[Any, Any]):
    """Compiled statements by SQLAlchemy's keys, in which one SQLite dialect is as good as another."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(key[1:], compiled)


_compiled = Compiled()


def sharing_engine(*arguments: Any, **options: Any) -> Engine:
    """Does what `sqlalchemy.create_engine` does."""
    made = create_engine(*arguments, **options)
    if made.dialect.name == "sqlite":
        made.update_execution_options(compiled_cache=_compiled)
    return made


@contextmanager
def made_from_statements() -> Iterator[None]:
    """Makes the ledgers of this process so, as long as the block lasts."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(migrate, "upgrade", upgrade))
        patches.enter_context(mock.patch.object(database, "create_engine", sharing_engine))
        yield
