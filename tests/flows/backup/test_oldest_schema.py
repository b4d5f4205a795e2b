"""A home and a backup of the oldest released schema: its run is listed, audited, restored, and a real one resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db.core.migrate import HEAD
from db.ledger import Ledger
from db.portable.cut import TableHead
from db.portable.lines import line_of, values_of
from flows.backup.create import create_backup
from flows.backup.folder import BackupFolder
from flows.backup.manifest import BackupManifest, StoredTable
from flows.backup.restore import restore_backup
from flows.reports.audit import verify_run
from flows.run.home import LEDGER_VARIABLE, Home
from tests.db.released import OLDEST, fill, rows, unpack_run
from tests.flows.tools import Driver, same_result
from tests.postgresql import Server, start_server

RUN = "toy-1"
Tables = Iterator[tuple[TableHead, list[list[Any]]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_server(tmp_path_factory.mktemp("postgresql") / "data")
    yield server
    server.close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home that the oldest version has left."""
    home = Home(tmp_path / "runs")
    home.folder.mkdir()
    unpack_run(home.folder)
    fill(home.folder / "ledger.db")
    return home


def check(home: Home, address: str) -> None:
    """Requires that the run is listed, and that its rows and files agree."""
    with Ledger.open(address) as ledger:
        assert [run.id for run in ledger.runs.list()] == [RUN]
        report = verify_run(ledger, RUN, home.run_folder(RUN), None)
    assert report.sound, report.disagreement
    assert {name: count for name, count in report.checked.items() if count} == {
        "events": report.checked["events"], "spec": 1, "inputs": 3, "commits": 4, "experience": 3, "checkpoints": 2,
    }  # fmt: skip


def test_a_home_of_the_oldest_schema_is_migrated_and_audited(home: Home) -> None:
    check(home, home.ledger)


@pytest.mark.verify
def test_it_is_migrated_and_audited_on_postgresql(home: Home, server: Server) -> None:
    address = server.create("oldest")
    fill(address)
    check(home, address)


def old_backup(home: Home, folder: BackupFolder, tables: Tables) -> str:
    """Makes a backup as the oldest version would have: with its tables and columns."""
    with Ledger.open(home.ledger) as ledger:
        made = create_backup(home, ledger, folder)
    stored = {}
    for head, lines in tables:
        added = folder.add([line_of(number, values) for number, values in enumerate(lines, start=1)])
        stored[head.name] = StoredTable(dict(head.columns), len(lines), added.entry.size, added.entry.sha256)
    manifest: BackupManifest = replace(made.manifest, revision=OLDEST, tables=stored, at=made.manifest.at + 1000)
    return folder.publish(manifest)


def test_a_backup_of_the_oldest_schema_is_restored_and_migrated(home: Home, tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path / "backups")
    new = Home(tmp_path / "elsewhere")
    restore_backup(folder, old_backup(home, folder, rows()), new, new.ledger_address)
    with Ledger.open(new.ledger, migrate=False) as ledger:
        assert (ledger.migration.before, ledger.migration.after) == (HEAD, HEAD)
    check(new, new.ledger)


@pytest.mark.verify
def test_a_backup_of_the_oldest_schema_is_restored_on_postgresql(home: Home, tmp_path: Path, server: Server) -> None:
    folder = BackupFolder(tmp_path / "backups")
    new = Home(tmp_path / "elsewhere")
    address = server.create("restored")
    restore_backup(folder, old_backup(home, folder, rows()), new, address)
    check(new, address)


def at_the_oldest(ledger: Ledger) -> Tables:
    """Yields the rows of a ledger that the oldest schema has tables for."""
    known = {head.name for head, _ in rows()}
    with ledger.exports.cut() as cut:
        for head, lines in cut.tables():
            if head.name in known:
                read = list(lines)
                yield head, list(values_of(head.name, read, len(read)))


@pytest.mark.verify
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_killed_run_of_the_oldest_schema_is_resumed(
    backend: str, driver: Driver, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = driver.create("virtual.yaml", "iterations=6")
    driver.drive(undisturbed)
    expected = driver.results(undisturbed)
    run = driver.create("virtual.yaml", "iterations=6")
    driver.drive_until_killed(run, "learn:4")
    driver.end_actors(run)
    with driver.ledger() as ledger:
        tables = list(at_the_oldest(ledger))
    if backend == "postgresql":
        address = server.create("killed")
        fill(address, iter(tables))
        driver.environment[LEDGER_VARIABLE] = address
        monkeypatch.setenv(LEDGER_VARIABLE, address)
    else:
        for path in driver.folder.glob("ledger.db*"):
            path.unlink()
        fill(driver.folder / "ledger.db", iter(tables))
    driver.drive(run)
    assert same_result(driver.results(run), expected)
