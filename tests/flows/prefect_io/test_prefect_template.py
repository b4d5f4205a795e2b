"""A new database of Prefect's server is a copy of an empty one, and equal to one that Prefect has migrated."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest

from flows.prefect_io import prefect_template
from flows.prefect_io.prefect_migrations import revision_of
from flows.prefect_io.prefect_server import DATABASE_VARIABLE, own_paths, sqlite_address, sqlite_file
from flows.prefect_io.prefect_template import begin_database

NAME = f"prefect-{version('prefect')}.db"
BEGIN = """
import sys
from pathlib import Path
from flows.prefect_io import prefect_template
prefect_template.INSTALLED = Path("there is none")
prefect_template.begin_database(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Has the environment come without a template."""
    monkeypatch.setattr(prefect_template, "INSTALLED", tmp_path / "installed")


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a database that Prefect has migrated, and below `starts` the template that it has left."""
    folder = tmp_path_factory.mktemp("migrated")
    address = sqlite_address(folder)
    environment = {**os.environ, **own_paths(folder), DATABASE_VARIABLE: address}
    command = [sys.executable, "-c", BEGIN, str(sqlite_file(address)), str(folder / "starts")]
    subprocess.run(command, env=environment, check=True)
    return folder


def contents(database: Path) -> tuple[list[tuple[str, ...]], dict[str, int]]:
    """Returns everything that a database's schema has, and the number of rows of each table."""
    with closing(sqlite3.connect(database)) as connection:
        schema = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()
        tables = [name for kind, name, _ in schema if kind == "table"]
        return schema, {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}


def test_a_copy_is_what_prefect_would_have_made(migrated: Path, tmp_path: Path) -> None:
    database = tmp_path / "run" / "prefect" / "prefect.db"
    begin_database(database, migrated / "starts")
    assert contents(database) == contents(migrated / "prefect.db")
    assert revision_of(database) is not None and len(contents(database)[0]) > 100
    assert database.stat().st_mode & 0o077 == 0
    assert [path.name for path in database.parent.iterdir()] == ["prefect.db"]
    assert [path.name for path in (migrated / "starts").iterdir()] == [NAME]


def test_a_template_that_cannot_be_read_is_no_obstacle(
    migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed" / NAME).mkdir(parents=True)  # no file, for whoever runs the test
    begin_database(tmp_path / "prefect.db", migrated / "starts")
    assert contents(tmp_path / "prefect.db") == contents(migrated / "prefect.db")


def test_a_database_that_exists_is_left_alone(migrated: Path, tmp_path: Path) -> None:
    database = tmp_path / "prefect.db"
    database.write_bytes(b"")
    begin_database(database, migrated / "starts")
    assert database.read_bytes() == b""


def test_the_template_of_the_environment_comes_first(
    migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect_template, "INSTALLED", migrated / "starts")
    begin_database(tmp_path / "new.db", tmp_path / "starts")
    assert revision_of(tmp_path / "new.db") == revision_of(migrated / "prefect.db")
    assert not (tmp_path / "starts").exists()


def test_a_copy_that_was_cut_short_is_made_again(migrated: Path, tmp_path: Path) -> None:
    (tmp_path / "prefect.new").write_bytes(b"half a copy")
    begin_database(tmp_path / "prefect.db", migrated / "starts")
    assert contents(tmp_path / "prefect.db") == contents(migrated / "prefect.db")
