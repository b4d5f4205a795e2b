"""What would change of a home is said before it does, and nothing of the home is touched by saying so."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from db.core.engine import Database, DatabaseTime, database_url, open_engine
from db.core.migrate import HEAD, upgrade
from flows.run.home import Home
from ops.preflight.home_folder import ledger_file
from ops.preflight.upgrade import pending_changes
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run

OLDER = "0007"


def aged(home: Home) -> Path:
    """Takes the newest migrations off a ledger, as a version before them had left it."""
    file = ledger_file(home)
    assert file is not None
    made, columns = table_of_leases(home.folder / "older.db")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("ALTER TABLE lease RENAME TO newer")
        connection.execute(made)
        connection.execute(f"INSERT INTO lease ({columns}) SELECT {columns} FROM newer WHERE run IS NOT NULL")
        connection.execute("DROP TABLE newer")
        connection.execute("DROP TABLE home_event")
        connection.execute("ALTER TABLE queue_entry DROP COLUMN until")
        connection.execute("UPDATE alembic_version SET version_num = ?", (OLDER,))
    return file


def table_of_leases(path: Path) -> tuple[str, str]:
    """Returns the statement that makes the older version's table of leases, and its columns."""
    database = Database(open_engine(database_url(path)), DatabaseTime)
    with database.write() as connection:
        upgrade(connection, "the test's ledger", OLDER)
    database.engine.dispose()
    with closing(sqlite3.connect(path)) as ledger:
        (made,) = ledger.execute("SELECT sql FROM sqlite_master WHERE name = 'lease'").fetchone()
        columns = ", ".join(row[1] for row in ledger.execute("PRAGMA table_info(lease)"))
    path.unlink()
    return str(made), columns


def test_a_ledger_of_an_older_version_stays_as_it_is_until_it_is_upgraded(yatt: Yatt, home: Home) -> None:
    seed_run(home, committed=1, ends=False)
    file = aged(home)
    before = file.read_bytes()
    answer = yatt("upgrade", "--check", "-o", "json")
    assert answer.code == 0, answer.err
    ledger = next(change for change in answer.document["changes"] if change["what"] == "ledger")
    assert (ledger["before"], ledger["after"]) == (OLDER, HEAD)
    assert "audit chain" in ledger["effect"]
    assert not answer.document["migrated"]
    assert file.read_bytes() == before
    assert yatt("upgrade", "-o", "json").document["migrated"]
    assert [change.what for change in pending_changes(home) if change.what == "ledger"] == []


def test_a_library_that_decides_results_is_named_by_run(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run = seed_run(home, committed=1, ends=False)
    monkeypatch.setattr("flows.run.changed_versions.installed", lambda name, engine=None: "9.9")
    monkeypatch.setattr(
        "flows.run.changed_versions.ControlState.from_json",
        lambda state: type("State", (), {"environment": {"torch": "2.0"}}),
    )
    (change,) = pending_changes(home)
    assert (change.what, change.run, change.before, change.after) == ("torch", run, "2.0", "9.9")
    assert "last bits" in change.effect


def test_a_spec_that_this_version_does_not_read_blocks_the_upgrade(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, committed=1, ends=False)
    file = aged(home)
    with closing(sqlite3.connect(file)) as connection, connection:
        (text,) = connection.execute("SELECT spec FROM spec_revision").fetchone()
        document = {**json.loads(text), "unheard_of": 1}
        connection.execute("DROP TRIGGER IF EXISTS spec_revision_is_immutable")
        connection.execute("UPDATE spec_revision SET spec = ?", (json.dumps(document),))
    answer = yatt("upgrade", "-o", "json")
    assert answer.code == 1
    blocking = [change for change in answer.document["changes"] if change["blocks"]]
    assert [(change["run"], change["what"]) for change in blocking] == [(run, "spec")]
    assert "unheard_of" in blocking[0]["effect"]
    assert not answer.document["migrated"]
