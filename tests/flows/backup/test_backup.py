"""Backups of a home that drivers have left: complete, incremental, verified, restored elsewhere; damage is named and refused."""

from __future__ import annotations

import errno
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from db.core.errors import LedgerError, LedgerVersionError
from db.core.models import Base
from db.ledger import Ledger
from db.portable.lines import DamagedRow
from flows.backup import create as creating
from flows.backup.create import create_backup
from flows.backup.folder import BackupFolder
from flows.backup.prune import prune_backups
from flows.backup.restore import restore_backup
from flows.backup.tracker_copy import copy_database
from flows.backup.verify import verify_backup
from flows.files.retention import PRUNED_EVENT
from flows.run.home import RESTORING, Home
from tests.crash import deaths
from tests.flows.backup.scenarios import BACKUPS, HOME, NEW, backup_of, create, restore
from tests.ops.seeding import seed_run
from tests.read_only import read_only
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a run of two iterations, settings, and things that are not backed up."""
    home = Home(tmp_path / HOME)
    run = home.run_folder(seed_run(home))
    (home.folder / "prices.yaml").write_text("prices")
    (home.folder / "users.json").write_text("{}")
    (home.folder / "approval-links.key").write_text("secret")
    (run / "spec.yaml").write_text("spec")
    (run / "supervisor").mkdir()
    (run / "supervisor" / "driver.json").write_text("{}")
    return home


@pytest.fixture
def backups(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / BACKUPS)


def files_of(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith("ledger.db")}


def rows_of(home: Home) -> dict[str, int]:
    with Ledger.open(home.ledger, migrate=False) as ledger, ledger._database.read() as connection:
        return {name: len(connection.execute(select(table)).all()) for name, table in Base.metadata.tables.items()}


def test_a_restored_home_has_the_files_and_rows_that_resuming_and_auditing_need(
    home: Home, backups: BackupFolder
) -> None:
    with Ledger.open(home.ledger) as ledger:
        made = create_backup(home, ledger, backups, settings=("users.json",))
        head = ledger.events.head("toy-1")
    assert verify_backup(backups, made.id).sound
    new = Home(home.folder.parent / NEW)
    restore_backup(backups, made.id, new, new.ledger_address)
    kept = {
        name: data
        for name, data in files_of(home.folder).items()
        if name in ("prices.yaml", "users.json", "toy-1/spec.yaml") or name.startswith("toy-1/experience/b000/i00000")
    }
    expected = {name: data for name, data in kept.items() if "telemetry" not in name}
    assert files_of(new.folder) == expected
    assert len([name for name in expected if name.endswith("samples.parquet")]) == 4
    assert rows_of(new) == rows_of(home) | {"event": rows_of(home)["event"] + 1}
    with Ledger.open(new.ledger, migrate=False) as ledger:
        assert ledger.events.verify("toy-1") is None
        assert ledger.events.links("toy-1")[-2].hash == head.hash


def test_permissions_come_along_and_secrets_do_not(home: Home, backups: BackupFolder) -> None:
    (home.folder / "users.json").chmod(0o600)
    with Ledger.open(home.ledger) as ledger:
        made = create_backup(home, ledger, backups, settings=("users.json",))
    new = Home(home.folder.parent / NEW)
    restore_backup(backups, made.id, new, new.ledger_address)
    assert (new.folder / "users.json").stat().st_mode & 0o777 == 0o600
    assert not [path for path in backups.folder.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


def test_a_second_backup_adds_only_what_is_new(home: Home, backups: BackupFolder) -> None:
    first = backup_of(home, backups.folder)
    objects = files_of(backups.folder / "objects")
    assert first.added == sum(map(len, objects.values()))
    again = backup_of(home, backups.folder)
    assert again.added == 0 and files_of(backups.folder / "objects") == objects
    with Ledger.open(home.ledger) as ledger:
        ledger.events.append("toy-1", "note", {})
    third = backup_of(home, backups.folder)
    changed = {name for name, table in third.manifest.tables.items() if table != first.manifest.tables[name]}
    assert changed == {"run", "event"}
    assert third.added == sum(third.manifest.tables[name].size for name in changed)
    assert len(backups.ids()) == 3 and all(verify_backup(backups, name).sound for name in backups.ids())


def test_a_full_disk_is_not_taken_for_a_lock_that_is_held(backups: BackupFolder) -> None:
    with pytest.raises(OSError, match="No space left"), backups.in_use():
        raise OSError(errno.ENOSPC, "No space left on device")
    with backups.in_use(alone=True):
        pass


def test_what_killed_backups_left_is_deleted_with_the_old_ones(home: Home, backups: BackupFolder) -> None:
    backup_of(home, backups.folder)
    left = backups.scratch() / ".mlflow-killed"
    left.mkdir()
    (left / "mlflow.db").write_bytes(b"1234")
    objects = files_of(backups.folder / "objects").keys() - {".mlflow-killed/mlflow.db"}
    assert prune_backups(backups, 1).freed == 4
    assert not left.exists() and len(files_of(backups.folder / "objects")) == len(objects)


def test_a_database_is_copied_from_a_folder_of_any_name(tmp_path: Path) -> None:
    source = tmp_path / "runs?mode=rwc#1 %41" / "mlflow.db"
    source.parent.mkdir()
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
    copy_database(source, tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("t",)]


def test_a_backup_in_the_home_is_refused(home: Home) -> None:
    with pytest.raises(ConfigurationError, match="is in the home folder"):
        backup_of(home, home.folder / "backups")
    assert not (home.folder / "backups").exists()


def test_what_retention_deletes_meanwhile_is_left_out_by_a_fresh_cut(
    home: Home, backups: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = creating._copy_files
    folder = home.run_folder("toy-1") / "experience/b000/i000001"

    def pruned_first(ledger: Ledger, **arguments: Any) -> object:
        if folder.exists():
            ledger.events.append("toy-1", PRUNED_EVENT, {"branch": 0, "first": 1, "last": 1})
            shutil.rmtree(folder)
        return real(ledger, **arguments)

    monkeypatch.setattr(creating, "_copy_files", pruned_first)
    made = backup_of(home, backups.folder)
    assert (made.cuts, made.manifest.lacking) == (2, {})
    assert {name.split("/")[3] for name in made.manifest.files if "/experience/" in name} == {"i000002"}


def test_files_that_are_always_deleted_first_end_the_backup(
    home: Home, backups: BackupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(range(100))
    monkeypatch.setattr(creating, "_copy_files", lambda **_: {f"folder-{next(counts)}": "was deleted"})
    with pytest.raises(InfrastructureError, match="5 times in a row: was deleted"):
        backup_of(home, backups.folder)
    assert backups.ids() == []


def test_damage_of_the_home_is_recorded_and_named(home: Home, backups: BackupFolder) -> None:
    shard = next(home.run_folder("toy-1").glob("experience/b000/i000001/w00-s0000.*"))
    (shard / "samples.parquet").write_bytes(b"other")
    made = backup_of(home, backups.folder)
    (place,) = made.manifest.lacking
    assert place == f"toy-1/experience/b000/i000001/{shard.name}" and made.cuts == 2
    assert "samples.parquet: sha256 is" in made.manifest.lacking[place]
    assert not [name for name in made.manifest.files if name.startswith(place)]
    assert verify_backup(backups, made.id).lacking == tuple(made.manifest.lacking.values())


def object_of(backups: BackupFolder, made: creating.MadeBackup, name: str) -> Path:
    stored = made.manifest.tables.get(name) or made.manifest.files[name]
    return backups.object_path(stored.sha256)


def refused(backups: BackupFolder, made: creating.MadeBackup, new: Home, says: str) -> None:
    """Requires that the backup is not restored, and leaves no home that others would use."""
    with pytest.raises((DataError, DamagedRow), match=says):
        restore_backup(backups, made.id, new, new.ledger_address)
    if new.folder.exists():
        with pytest.raises(ConfigurationError, match="is being restored"):
            _ = new.ledger


def test_an_altered_file_is_named_and_not_restored(home: Home, backups: BackupFolder, tmp_path: Path) -> None:
    made = backup_of(home, backups.folder)
    name = next(name for name in made.manifest.files if name.endswith("samples.parquet"))
    path = object_of(backups, made, name)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (damage,) = verify_backup(backups, made.id).damage
    assert damage.startswith(f"{name}: was altered in the backup ({path})")
    refused(backups, made, Home(tmp_path / "a"), f"{name}: was altered")
    path.unlink()
    (damage,) = verify_backup(backups, made.id).damage
    assert damage.startswith(f"{name}: is missing from the backup ({path})")
    refused(backups, made, Home(tmp_path / "b"), f"{name}: is missing")
    assert not (tmp_path / "b").exists()
    path.write_bytes(data)
    restore_backup(backups, made.id, Home(tmp_path / "a"), Home(tmp_path / "a").ledger_address)  # goes on
    assert not (tmp_path / "a" / RESTORING).exists()


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"', b"'", 1), *lines[2:]], "table event, row 2"),
        (lambda lines: [lines[0], *lines[2:]], "table event: row 2 is missing"),
        (lambda lines: lines[:-1], r"table event: row \d+ is missing"),
    ],
)
def test_an_altered_row_is_named_and_not_restored(
    home: Home, backups: BackupFolder, tmp_path: Path, alter: object, says: str
) -> None:
    made = backup_of(home, backups.folder)
    path = object_of(backups, made, "event")
    path.write_bytes(b"".join(alter(path.read_bytes().splitlines(keepends=True))))  # type: ignore[operator]
    (damage,) = verify_backup(backups, made.id).damage
    assert re.match(says, damage)
    refused(backups, made, Home(tmp_path / NEW), "event")
    assert not (tmp_path / NEW / "ledger.db").exists() or "toy" not in str(rows_or_none(tmp_path / NEW))


def rows_or_none(folder: Path) -> object:
    try:
        with Ledger.open(folder / "ledger.db", migrate=False) as ledger:
            return ledger.runs.list()
    except LedgerError:
        return None


def test_an_altered_manifest_is_named_and_not_restored(home: Home, backups: BackupFolder, tmp_path: Path) -> None:
    made = backup_of(home, backups.folder)
    path = backups.manifest_path(made.id)
    path.write_text(path.read_text().replace('"rows": 1,', '"rows": 2,', 1))
    assert verify_backup(backups, made.id).damage == (
        f"{path}: was altered: its sha256 does not begin as its name ends",
    )
    refused(backups, made, Home(tmp_path / NEW), "was altered")


def test_only_an_empty_home_and_an_empty_ledger_are_filled(home: Home, backups: BackupFolder, tmp_path: Path) -> None:
    made = backup_of(home, backups.folder)
    before = files_of(home.folder)
    with pytest.raises(ConfigurationError, match=f"{home.folder}: is not empty; .* choose another with --home"):
        restore_backup(backups, made.id, home, home.ledger_address)
    with pytest.raises(LedgerVersionError, match="is not empty"):
        restore_backup(backups, made.id, Home(tmp_path / NEW), home.ledger_address)
    assert files_of(home.folder) == before and not (tmp_path / NEW).exists()
    with read_only(tmp_path), pytest.raises(InfrastructureError, match="cannot be created"):
        restore_backup(backups, made.id, Home(tmp_path / NEW), f"sqlite:///{tmp_path}/x/ledger.db")


def test_another_backup_does_not_go_on_where_one_was_interrupted(
    home: Home, backups: BackupFolder, tmp_path: Path
) -> None:
    made = backup_of(home, backups.folder)
    new = Home(tmp_path / NEW)
    with Ledger.open(home.ledger) as ledger:
        ledger.events.append("toy-1", "note", {})
    other = backup_of(home, backups.folder)
    data = object_of(backups, made, "event").read_bytes()
    object_of(backups, made, "event").write_bytes(data[:-3] + b"x]\n")
    refused(backups, made, new, "event")
    with pytest.raises(ConfigurationError, match=f"begun with another backup {made.id}"):
        restore_backup(backups, other.id, new, new.ledger_address)
    with pytest.raises(ConfigurationError, match="begun with another ledger"):
        restore_backup(backups, made.id, new, f"sqlite:///{tmp_path}/ledger.db")


def test_mlflow_in_the_home_comes_along_with_its_addresses_moved(
    home: Home, backups: BackupFolder, tmp_path: Path
) -> None:
    artifact = home.folder / "artifacts" / "1" / "file.txt"
    artifact.parent.mkdir(parents=True)
    artifact.write_text("artifact")
    old = str(home.folder)
    new = Home(tmp_path / NEW)
    rows = [f"file://{old}/artifacts/1", json.dumps({"uri": f"{old}/toy-1/x"}), f"{old}er/y", "text"]
    with sqlite3.connect(home.folder / "mlflow.db") as database:
        database.execute("CREATE TABLE runs (place TEXT)")
        database.executemany("INSERT INTO runs VALUES (?)", [(row,) for row in rows])
    database.close()
    made = backup_of(home, backups.folder)
    assert made.manifest.tracked_at is not None and made.manifest.tracked_at <= made.manifest.at
    restore_backup(backups, made.id, new, new.ledger_address)
    with sqlite3.connect(new.folder / "mlflow.db") as database:
        found = [place for (place,) in database.execute("SELECT place FROM runs")]
    database.close()
    assert found == [f"file://{new.folder}/artifacts/1", json.dumps({"uri": f"{new.folder}/toy-1/x"}), *rows[2:]]
    assert (new.folder / "artifacts" / "1" / "file.txt").read_text() == "artifact"


@pytest.mark.verify
def test_a_kill_at_every_step_of_a_backup_leaves_none_or_a_whole_one(home: Home, tmp_path: Path) -> None:
    def prepare(folder: Path) -> None:
        shutil.copytree(home.folder, folder / HOME)

    steps = 0
    (tmp_path / "deaths").mkdir()
    for death in deaths(create, tmp_path / "deaths", prepare):
        steps = death.step
        backups = BackupFolder(death.folder / BACKUPS)
        assert len(backups.ids()) == 1 or not death.acknowledged
        assert all(verify_backup(backups, name).sound for name in backups.ids())
        again = backup_of(Home(death.folder / HOME), backups.folder)
        assert verify_backup(backups, again.id).sound
        if death.step % 40 == 0 and backups.ids() == [again.id]:
            assert again.added < again.manifest.size, "what was copied before the kill is used"
        shutil.rmtree(death.folder)
    assert steps > 30


@pytest.mark.verify
def test_a_kill_at_every_step_of_a_restoration_leaves_a_home_that_is_refused_or_whole(
    home: Home, tmp_path: Path
) -> None:
    made = backup_of(home, tmp_path / BACKUPS)
    steps = 0
    (tmp_path / "deaths").mkdir()

    def prepare(folder: Path) -> None:
        shutil.copytree(tmp_path / BACKUPS, folder / BACKUPS)

    for death in deaths(restore, tmp_path / "deaths", prepare):
        steps = death.step
        new = Home(death.folder / NEW)
        backups = BackupFolder(death.folder / BACKUPS)
        if (new.folder / RESTORING).exists():
            with pytest.raises(ConfigurationError, match="is being restored"):
                _ = new.ledger
            restore_backup(backups, made.id, new, new.ledger_address)
        elif not (new.folder / "ledger.db").exists():
            restore_backup(backups, made.id, new, new.ledger_address)
        assert rows_of(new) == rows_of(home) | {"event": rows_of(home)["event"] + 1}
        with Ledger.open(new.ledger, migrate=False) as ledger:
            assert ledger.events.verify("toy-1") is None
        assert set(files_of(new.folder)) == set(made.manifest.files)
        shutil.rmtree(death.folder)
    assert steps > 30
