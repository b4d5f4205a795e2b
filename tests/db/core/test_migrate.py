"""Opening a ledger: creation and migration to the newest tables, and clear errors for any other database."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import select
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from db.core import migrate
from db.core.engine import DatabaseTime, database_url
from db.core.errors import LedgerError, LedgerFull, LedgerReadOnly, LedgerUnavailable, LedgerVersionError
from db.core.migrate import HEAD, MIGRATIONS
from db.core.models import Base
from db.ledger import Ledger
from db.write.records import ChoiceRow
from tests.db.tools import holder
from tests.read_only import read_only

NEWER = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "9999", "{before}"


def upgrade() -> None:
    op.create_table("note", sa.Column("run", sa.Text(), nullable=False))
"""


@pytest.mark.postgresql
def test_the_migrations_create_the_tables_of_the_models(ledger: Ledger) -> None:
    with ledger._database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_head_names_the_newest_migration() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [HEAD]


def test_an_older_ledger_is_upgraded_with_its_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        made = ledger.runs.create("toy", {}, "d", 1)
    newer = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, newer)
    (newer / "versions" / "9999_notes.py").write_text(NEWER.format(before=HEAD))
    monkeypatch.setattr(migrate, "MIGRATIONS", newer)
    monkeypatch.setattr(migrate, "HEAD", "9999")
    with pytest.raises(LedgerVersionError, match=f"revision {HEAD}"):
        Ledger.open(path, migrate=False)
    with Ledger.open(path) as ledger:
        assert ledger.runs.find(made.id) == made
        with ledger._database.read() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM note").scalar_one() == 0
        fence = ledger.leases.acquire(made.id, holder("first"), ttl_seconds=10)
        assert ledger.records.choice(fence, ChoiceRow(0, 1, "skip", {})).term == 1


def test_opening_again_keeps_the_contents(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        ledger.runs.create("toy", {}, "d", 1)
    with Ledger.open(f"sqlite:///{path}", migrate=False) as ledger:
        assert ledger.runs.find("toy-1").id == "toy-1"


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(LedgerVersionError, match=f"migration 9999.*{HEAD}"):
        Ledger.open(path)
    with pytest.raises(LedgerVersionError, match="revision 9999"):
        Ledger.open(path, migrate=False)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]
    connection.close()


def test_opening_without_migration_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match=f"{tmp_path}/ledger.sqlite"):
        Ledger.open(tmp_path / "ledger.sqlite", migrate=False)
    with pytest.raises(LedgerUnavailable, match=r"absent/ledger.sqlite.*folder"):
        Ledger.open(tmp_path / "absent" / "ledger.sqlite")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(LedgerVersionError, match=f"empty.sqlite.*revision {HEAD}"):
        Ledger.open(tmp_path / "empty.sqlite", migrate=False)


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be read as one\n" * 100)
    with pytest.raises(LedgerUnavailable, match=r"notes\.txt.*not a database"):
        Ledger.open(path)


@pytest.mark.parametrize("address", ["mysql://host/ledger", "nonsense://", "postgresql://host:port/x"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(LedgerError, match=r"postgresql://user@host/database or sqlite:////folder/ledger.db"):
        database_url(address)


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.runs.create("toy", {}, "d", 1)
        with ledger._database.read() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")  # no more pages on this pooled connection
        with pytest.raises(LedgerFull, match="full"):
            ledger.events.append("toy-1", "note", {"text": "x" * 100_000})
        assert ledger.events.verify("toy-1") is None
        assert ledger.events.head("toy-1").seq == 1


def test_read_only_paths_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with read_only(tmp_path), pytest.raises(LedgerReadOnly, match=f"{path}: {tmp_path} is not writable"):
        Ledger.open(path)
    with Ledger.open(path) as ledger:
        ledger.runs.create("toy", {}, "d", 1)
    with read_only(tmp_path), pytest.raises(LedgerReadOnly, match=f"{tmp_path} is not writable"):
        Ledger.open(path, migrate=False)
    with read_only(path), Ledger.open(path, migrate=False) as ledger:
        assert ledger.runs.find("toy-1").id == "toy-1"
        with pytest.raises(LedgerReadOnly, match=f"{path} is not writable"):
            ledger.events.append("toy-1", "note", {})
    with Ledger.open(path) as ledger:
        assert ledger.events.head("toy-1").seq == 1


def test_sqlite_is_configured_to_be_durable_and_compact(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger, ledger._database.read() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
        points = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'metric_point'")
        assert "WITHOUT ROWID" in points.scalar_one()
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_the_tables_can_be_created_on_postgresql() -> None:
    dialect = postgresql.dialect()
    for table in Base.metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            partial = not any(part in str(index.name) for part in ("_run_", "_job_key_"))
            assert ("WHERE" in str(CreateIndex(index).compile(dialect=dialect))) is partial, index.name
    assert "clock_timestamp()" in str(select(DatabaseTime()).compile(dialect=dialect))
    assert database_url("postgresql://me@host/ledger").drivername == "postgresql+psycopg"


def test_importing_the_ledger_is_light() -> None:
    heavy = ("ray", "torch", "prefect", "mlflow", "transformers", "alembic", "yatt_core", "flows", "ops")
    code = f"import sys, db.ledger; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
