"""A database that a newer Prefect has migrated is refused with what to do; any other one is opened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flows.driver.services import check_own_server
from flows.prefect_io.prefect_migrations import check_database, known_revisions, revision_of
from flows.prefect_io.prefect_server import SharedServer, own_database
from yatt_core.errors import ConfigurationError, ExitCode


def migrated(folder: Path, revision: str | None) -> Path:
    database = own_database(folder)
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as connection, connection:
        if revision is not None:
            connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
            connection.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
    return database


def newest() -> str:
    """Returns the newest revision as Prefect's own scripts say it."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from prefect.server.database import alembic_commands

    folder = Path(alembic_commands.__file__).parent / "_migrations"
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("version_locations", str(folder / "versions" / "sqlite"))
    (head,) = ScriptDirectory.from_config(config).get_heads()
    return head


def test_what_the_installed_prefect_has_migrated_is_in_order(tmp_path: Path) -> None:
    assert len(known_revisions()) > 50
    check_database("r", migrated(tmp_path / "now", newest()))
    check_database("r", migrated(tmp_path / "empty", None))
    check_database("r", own_database(tmp_path / "none"))
    assert not own_database(tmp_path / "none").exists()


def test_what_a_newer_prefect_has_migrated_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    database = migrated(tmp_path, "0123456789ab")
    with pytest.raises(ConfigurationError, match="newer Prefect") as refused:
        check_own_server(lambda _: None, "r", tmp_path)
    assert refused.value.exit_code == ExitCode.CONFIGURATION == 2
    assert "0123456789ab" in str(refused.value) and f"mv {database.parent} {database.parent}.newer" in str(
        refused.value
    )
    assert revision_of(database) == "0123456789ab"
    assert [file.name for file in database.parent.iterdir()] == [database.name]


def test_a_server_that_runs_share_needs_no_database_of_the_run(tmp_path: Path) -> None:
    migrated(tmp_path, "0123456789ab")
    shared = SharedServer.__new__(SharedServer)
    check_own_server(lambda _: shared, "r", tmp_path)
