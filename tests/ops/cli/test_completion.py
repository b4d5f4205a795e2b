"""What the Tab key offers, through the program as the shell calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.run.creation import create_run
from flows.run.home import Home
from tests.ops.seeding import toy_spec

HEAVY = ("sqlalchemy", "numpy", "ray", "torch", "prefect", "mlflow", "rich.console")


def offered(line: str, folder: Path, shell: str = "bash", **more: str) -> tuple[list[str], list[str]]:
    """Returns what is offered at the end of a command line, and the modules that were imported for it."""
    words = line.split(" ")
    environment = os.environ | {
        "_YATT_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    command = [sys.executable, "-X", "importtime", "-c", "from ops.cli.main import main; main()"]
    done = subprocess.run(
        command, cwd=folder, env=environment | more, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.split(), [row.rpartition("|")[2].strip() for row in done.stderr.splitlines() if "|" in row]


@pytest.fixture
def runs(home: Home) -> list[str]:
    return [create_run(home, toy_spec().model_copy(update={"name": name})) for name in ("toy", "other", "toy")]


def test_runs_are_offered_without_opening_the_ledger(home: Home, runs: list[str]) -> None:
    (home.folder / "group").mkdir()
    (home.folder / ".toy-7.12.trash").mkdir()
    found, imported = offered("yatt show ", home.folder.parent)
    assert found[0] == "latest" and sorted(found[1:]) == sorted(runs)
    assert [name for name in HEAVY if name in imported] == []
    for line in ("yatt resume to", "yatt compare other-1 to", "yatt rm to", "yatt audit verify to", "yatt watch to"):
        found, _ = offered(line, home.folder.parent)
        assert sorted(found) == ["toy-1", "toy-2"], line
    elsewhere, _ = offered("yatt show ", home.folder, YATT_HOME=str(home.folder))
    assert sorted(elsewhere) == sorted([*runs, "latest"])
    assert offered("yatt show ", home.folder, YATT_HOME="nowhere")[0] == ["latest"]


def test_the_runs_of_a_ledger_elsewhere_are_asked_for(home: Home, runs: list[str], tmp_path: Path) -> None:
    found, _ = offered("yatt show o", tmp_path / "runs", YATT_HOME=str(tmp_path / "no"), YATT_LEDGER=home.ledger)
    assert found == ["other-1"]
    missing = f"sqlite:///{tmp_path / 'missing.db'}"
    assert offered("yatt show ", tmp_path, YATT_LEDGER=missing)[0] == ["latest"]


def test_spec_files_and_folders_are_offered(tmp_path: Path) -> None:
    for name in ("one.yaml", "two.yml", "notes.txt", ".hidden.yaml", "sub/three.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert offered("yatt train ", tmp_path)[0] == ["sub/", "one.yaml", "two.yml"]
    assert offered("yatt plan o", tmp_path)[0] == ["one.yaml"]
    assert offered("yatt check sub/", tmp_path)[0] == ["sub/three.yaml"]
    assert offered(f"yatt train {tmp_path}/tw", Path("/"))[0] == [f"{tmp_path}/two.yml"]
    assert offered("yatt train nowhere/", tmp_path)[0] == []


def test_the_script_for_a_shell_is_shown_and_nothing_is_written(tmp_path: Path) -> None:
    environment = os.environ | {"HOME": str(tmp_path), "_YATT_COMPLETE": "source_bash"}
    command = [sys.executable, "-c", "from ops.cli.main import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "complete" in done.stdout and "_YATT_COMPLETE" in done.stdout
    assert list(tmp_path.iterdir()) == []
