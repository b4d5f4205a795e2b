"""`yatt backup`, `restore`, `migrate` and `maintain`: output, exit codes and refusals."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from db.core.migrate import HEAD
from db.ledger import Ledger
from flows.run.home import RESTORING, Home
from tests.db.released import OLDEST, fill, unpack_run
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run


def test_a_home_is_backed_up_listed_verified_and_restored(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    run = seed_run(home)
    folder = str(tmp_path / "backups")
    new = tmp_path / "elsewhere"
    (home.folder / "tokens.json").write_text("{}")
    asked = yatt("backup", "create", str(tmp_path / "with"), "--with-tokens", "-o", "json")
    assert asked.code == 0 and yatt("restore", str(tmp_path / "with"), "--home", str(tmp_path / "home2")).code == 0
    assert (tmp_path / "home2" / "tokens.json").read_text() == "{}"
    made = yatt("backup", "create", folder, "-o", "json")
    assert made.code == 0 and made.document["added"] == made.document["bytes"] > 0 and made.document["lacking"] == {}
    name = made.document["id"]
    again = yatt("backup", "create", folder)
    assert again.code == 0 and "of which 0 B are new" in again.out
    rows = yatt("backup", "list", folder, "-o", "json").document["backups"]
    assert rows[0]["id"] == name and {row["runs"] for row in rows} == {1} and len(rows) == 2
    assert name in yatt("backup", "list", folder).out
    sound = yatt("backup", "verify", folder, "--id", name, "-o", "json")
    assert sound.code == 0 and sound.document["sound"] and sound.document["damage"] == []
    restored = yatt("restore", folder, "--id", name, "--home", str(new))
    assert restored.code == 0 and restored.out.startswith(f"{new}: 1 run and ")
    assert not (new / "tokens.json").exists(), "nothing with which to sign in, unless it is asked for"
    listed = yatt("runs", "--home", str(new), "-o", "json").document["runs"]
    assert [row["id"] for row in listed] == [run]
    refused = yatt("restore", folder, "--home", str(new))
    assert refused.code == 2 and "is not empty" in refused.err and "--home" in refused.err
    pruned = yatt("backup", "prune", folder, "--keep", "1", "-o", "json")
    assert pruned.document["deleted"] == [name] and pruned.document["freed"] == 0
    assert yatt("backup", "verify", folder).code == 0


def test_damage_is_named_with_exit_code_1_and_not_restored(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    seed_run(home)
    folder = tmp_path / "backups"
    new = tmp_path / "elsewhere"
    name = yatt("backup", "create", str(folder), "-o", "json").document["id"]
    manifest = json.loads((folder / "backups" / f"{name}.json").read_text())
    sha256 = manifest["tables"]["event"]["sha256"]
    path = folder / "objects" / sha256[:2] / sha256
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(b"1", b"2"), *lines[4:]]))
    found = yatt("backup", "verify", str(folder))
    assert found.code == 1 and "table event" in found.out and f"{name} is not sound" in found.out
    assert yatt("backup", "verify", str(folder), "-o", "json").document["sound"] is False
    refused = yatt("restore", str(folder), "--home", str(new))
    assert refused.code == 1 and "table event" in refused.err
    for words in (("runs",), ("train", "configs/virtual.yaml"), ("doctor",), ("backup", "create", str(folder))):
        answer = yatt(*words, "--home", str(new))
        assert answer.code == 2 and "is being restored from a backup" in answer.err, words
    assert (new / RESTORING).exists()


def test_a_damaged_manifest_is_listed_with_exit_code_1(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    seed_run(home)
    name = yatt("backup", "create", str(tmp_path / "backups"), "-o", "json").document["id"]
    (tmp_path / "backups" / "backups" / f"{name}.json").write_text("{}")
    listed = yatt("backup", "list", str(tmp_path / "backups"))
    assert listed.code == 1 and "damaged" in listed.out and "was altered" in listed.err


def test_damage_of_the_home_is_told_with_exit_code_1(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    seed_run(home)
    shard = next(home.folder.glob("toy-1/experience/b000/i000001/w00-s0000.*"))
    (shard / "samples.parquet").unlink()
    made = yatt("backup", "create", str(tmp_path / "backups"), "-o", "json")
    assert made.code == 1 and list(made.document["lacking"]) == [f"toy-1/experience/b000/i000001/{shard.name}"]
    assert "not in the backup" in made.err and "samples.parquet" in made.err
    restored = yatt("restore", str(tmp_path / "backups"), "--home", str(tmp_path / "elsewhere"))
    assert restored.code == 0 and "lacked this already" in restored.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("backup", "verify", "{}/none"), "there are no backups here"),
        (("restore", "{}/none", "--home", "{}/new"), "there are no backups here"),
        (("backup", "create", "{}/runs/backups"), "is in the home folder"),
        (("backup", "verify", "{}/backups", "--id", "2001"), "there is no such backup"),
        (("restore", "{}/backups", "--home", "{}/new", "--ledger", "mysql://x/y"), "sqlite and postgresql"),
        (("backup", "prune", "{}/backups"), "--keep"),
        (("backup", "prune", "{}/new", "--keep", "2"), "there are no backups here"),
        (("backup", "list", "{}/new"), "there is no such folder"),
        (("restore", "{}/runs/ledger.db", "--home", "{}/new"), "is a file; expected the folder of the backups"),
        (("backup", "create", "{}/elsewhere", "--home", "{}/nothing"), "no runs here"),
        (("migrate", "--home", "{}/nothing"), "there is no ledger to migrate"),
    ],
)
def test_wrong_words_are_refused_with_exit_code_2(
    yatt: Yatt, home: Home, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    seed_run(home)
    yatt("backup", "create", str(tmp_path / "backups"))
    answer = yatt(*(word.format(tmp_path) for word in words))
    assert answer.code == 2 and says in answer.err, answer.err
    assert not (tmp_path / "new").exists() and not (tmp_path / "nothing").exists()


def test_an_older_ledger_is_migrated_and_a_newer_one_refused(yatt: Yatt, home: Home) -> None:
    home.folder.mkdir()
    unpack_run(home.folder)
    fill(home.folder / "ledger.db")
    refused = yatt("runs")
    assert refused.code == 2 and "`yatt migrate`" in refused.err
    assert yatt("migrate").out == f"the ledger went from revision {OLDEST} to {HEAD}\n"
    assert yatt("migrate", "-o", "json").document == {"before": HEAD, "after": HEAD}
    assert yatt("audit", "verify", "toy-1", "-o", "json").document["checked"]["checkpoints"] == 2
    with sqlite3.connect(home.folder / "ledger.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for words in (("runs",), ("migrate",)):
        answer = yatt(*words)
        assert answer.code == 2 and "a newer version" in answer.err, words


def test_maintenance_by_hand_is_told_by_doctor_and_status(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    home.folder.mkdir()
    unpack_run(home.folder)
    fill(home.folder / "ledger.db")
    Ledger.open(home.ledger).close()
    (home.folder / "mlflow.db").unlink(missing_ok=True)
    with Ledger.open(home.ledger) as ledger, ledger._database.write() as connection:
        connection.exec_driver_sql("UPDATE run SET mlflow_run_id = NULL")  # its MLflow is not here
    (home.folder / "maintenance.yaml").write_text(f"backup: {{to: {tmp_path}/backups}}\n")
    done = yatt("maintain", "--by", "ann", "-o", "json")
    assert done.code == 0 and done.document["ok"] and done.document["by"] == "ann", done.out
    assert [step["name"] for step in done.document["steps"]] == [
        "deletions",
        "retention",
        "audit",
        "backup",
        "database",
    ]
    assert "maintenance" in yatt("doctor").out
    (weights,) = home.folder.glob("toy-1/checkpoints/b000-i000002.*/weights.safetensors")
    weights.write_bytes(b"other")
    failed = yatt("maintain")
    assert failed.code == 1 and "fail  audit" in failed.out and str(weights) in failed.out
    checks = {check["name"]: check for check in yatt("doctor", "-o", "json").document["checks"]}
    assert checks["maintenance"]["verdict"] == "warn" and str(weights) in checks["maintenance"]["found"]
    (home.folder / "maintenance.yaml").write_text("backup: {to: here}\n")
    wrong = yatt("maintain")
    assert wrong.code == 2 and "backup.to" in wrong.err
