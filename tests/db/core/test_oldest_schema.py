"""A ledger of the oldest released schema, written by that version, is migrated online, while older drivers go on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from db.core.engine import Database, DatabaseTime, Fence, database_url, open_engine
from db.core.errors import LedgerVersionError
from db.core.migrate import HEAD, MIGRATIONS, Migration, upgrade
from db.ledger import Ledger
from tests.db.released import OLDEST, fill, rows
from tests.db.tools import commit_of, holder

RUN = "toy-1"
NULL_IN_ROWS_OF_OTHERS = {("lease", "run")}
"""Columns that a migration has made nullable: an older driver asks for its own run's row only."""
ONLY_NEWER_ROWS = {("lease", "subject")}
"""Columns without a default in tables to which an older driver adds no row: who creates a run opens the ledger anew for it."""


def opened(address: str | Path) -> Database:
    return Database(open_engine(database_url(address)), DatabaseTime)


@pytest.mark.postgresql
def test_the_oldest_ledger_is_migrated_with_its_rows_and_goes_on(new_address: str | Path) -> None:
    fill(new_address)
    with pytest.raises(LedgerVersionError, match=f"revision {OLDEST}; .* revision {HEAD}: `yatt migrate` brings it"):
        Ledger.open(new_address, migrate=False)
    with Ledger.open(new_address) as ledger:
        assert ledger.migration == Migration(OLDEST, HEAD)
        (run,) = ledger.runs.list()
        assert (run.id, run.state, run.iteration) == (RUN, "created", 3)
        assert ledger.events.verify(RUN) is None
        assert [row.iteration for row in ledger.records.own_checkpoints(RUN)] == [2, 0]
        assert len(ledger.records.shards(RUN, 0, 3)) == 2
        fence = ledger.leases.acquire(RUN, holder("newer driver"), ttl_seconds=10)
        assert fence.term == 2
        ledger.commits.commit(fence, commit_of(4))
        assert ledger.events.verify(RUN) is None
    with Ledger.open(new_address) as ledger:
        assert ledger.migration == Migration(HEAD, HEAD)
        assert check_rows(ledger) > 40


def check_rows(ledger: Ledger) -> int:
    """Requires that every row of the oldest tables that nothing has changed is there; returns their number."""
    count = 0
    with ledger._database.read() as connection:
        for head, lines in rows():
            found = connection.execute(text(f"SELECT count(*) FROM {head.name}")).scalar_one()
            assert found >= len(lines), head.name
            count += len(lines)
    return count


@pytest.mark.postgresql
def test_a_driver_of_the_older_version_goes_on_beside_a_newer_one(new_address: str | Path) -> None:
    fill(new_address)
    older = opened(new_address)  # its engine has open connections, as a driver's has
    with older.write() as connection:
        commit_by_the_oldest(connection, 4)
    Ledger.open(new_address).close()
    with older.write() as connection:
        commit_by_the_oldest(connection, 5)
    older.engine.dispose()
    with Ledger.open(new_address) as ledger:
        assert [row.iteration for row in ledger.audit.commits(RUN)] == [0, 1, 2, 3, 4, 5]


def commit_by_the_oldest(connection: Connection, iteration: int) -> None:
    """Writes rows as the oldest version does: it names its own columns only."""
    key = {"run": RUN, "iteration": iteration}
    connection.execute(
        text(
            "INSERT INTO iteration (run, branch, iteration, term, experience_digest, weights_digest, fingerprint, committed_at)"
            " VALUES (:run, 0, :iteration, 1, 'e', 'w', '{}', 1)"
        ),
        key,
    )
    connection.execute(text("INSERT INTO control_state VALUES (:run, 0, :iteration, '{}')"), key)
    connection.execute(text("UPDATE run SET iteration = :iteration WHERE id = :run"), key)


@pytest.mark.postgresql
def test_processes_that_migrate_at_once_wait_for_each_other(new_address: str | Path) -> None:
    fill(new_address)
    found: list[Migration] = []

    def migrate() -> None:
        with Ledger.open(new_address) as ledger:
            found.append(ledger.migration)

    threads = [threading.Thread(target=migrate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and {each.after for each in found} == {HEAD}


def columns_of(connection: Connection) -> dict[str, dict[str, Any]]:
    look = inspect(connection)
    return {table: {column["name"]: column for column in look.get_columns(table)} for table in look.get_table_names()}


@pytest.mark.postgresql
def test_every_migration_only_adds_what_an_older_version_can_ignore(new_address: str | Path) -> None:
    """A driver of the version before goes on, so nothing is removed or changed, and what is new needs no value."""
    steps = sorted(script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions())
    database = opened(new_address)
    for before, after in zip([None, *steps], steps, strict=False):
        with database.write() as connection:
            old = columns_of(connection) if before else {}
            upgrade(connection, "the test's ledger", after)
            new = columns_of(connection)
        for table, columns in old.items():
            if table == "alembic_version":
                continue
            for name, column in columns.items():
                same = new[table][name]
                assert str(same["type"]) == str(column["type"]), (table, name)
                assert same["nullable"] == column["nullable"] or (table, name) in NULL_IN_ROWS_OF_OTHERS, (table, name)
            for name in new[table].keys() - columns.keys():
                added = new[table][name]
                given = added["nullable"] or added["default"] is not None or (table, name) in ONLY_NEWER_ROWS
                assert given, (after, table, name)
    database.engine.dispose()


def test_a_fence_of_before_the_migration_holds_after_it(tmp_path: Path) -> None:
    fill(tmp_path / "ledger.db")
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        fence = ledger.leases.acquire(RUN, holder("driver"), ttl_seconds=10)
        ledger.leases.renew(Fence.of_run(RUN, fence.term), 10)
