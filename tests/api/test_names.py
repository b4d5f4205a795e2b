"""YATT works beside packages of the names of its parts: with its command, in the user's own program, and in rewards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.api.hostile import hostile_folder
from tests.services import ROOT

BOTH = """
import yatt, flows, db, ops, json, sys
from yatt.errors import ConfigurationError
own = [flows.MINE, db.MINE, ops.MINE]
yatt.Spec
import yatt.flows.run.home, yatt.ops.cli.main, yatt.db.ledger
found = {name: sys.modules[name].__file__ for name in ("yatt.flows.run.home", "yatt_core.errors", "flows")}
print(json.dumps({"own": own, "found": found, "error": ConfigurationError.__module__}))
"""


def run(folder: Path, *words: str, environment: Mapping[str, str] | None = None, code: int = 0) -> str:
    """Runs a program in a folder that is also the first on the path of every process."""
    given = {**os.environ, **(environment or {}), "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=given, capture_output=True, text=True, timeout=570)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_program_imports_its_own_packages_and_ours(tmp_path: Path) -> None:
    answer = json.loads(run(hostile_folder(tmp_path / "mine"), "-c", BOTH))
    assert answer["own"] == ["flows", "db", "ops"]
    assert answer["found"]["flows"].startswith(str(tmp_path))
    assert answer["found"]["yatt.flows.run.home"] == str(ROOT / "flows" / "run" / "home.py")
    assert answer["error"] == "yatt_core.errors"


def test_the_command_and_a_module_of_a_part_start_in_such_a_folder(tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path / "mine")
    assert "yatt train" in run(folder, "-m", "yatt", "--help")
    assert "yatt train" in run(folder, "-m", "yatt.ops.cli.main", "--help")
    assert json.loads(run(folder, "-m", "yatt", "schema"))["title"] == "YATT run spec"


def test_a_reward_file_imports_the_users_own_package(tmp_path: Path) -> None:
    """`yatt check` calls the function, in the reward process."""
    folder = hostile_folder(tmp_path / "mine")
    reward = "rewards.parts=[{name: own, file: rewards.py:score}]"
    words = ("check", str(ROOT / "configs" / "virtual.yaml"), "--set", reward, "-o", "json")
    found = json.loads(
        run(folder, "-m", "yatt", *words, environment={"YATT_HOME": str(tmp_path / "runs")}).splitlines()[-1]
    )
    assert "own" in json.dumps(found)


@pytest.mark.verify
@pytest.mark.timeout(1200)
def test_a_run_trains_in_such_a_folder_with_a_reward_that_imports_the_users_own_package(tmp_path: Path) -> None:
    """The run starts its own supervisor, Prefect server, Ray head and actors, all with that folder first on the path."""
    folder = hostile_folder(tmp_path / "mine")
    words = ["-m", "yatt", "train", str(ROOT / "configs" / "virtual.yaml"), "-o", "json"]
    reward = "rewards.parts=[{name: own, file: rewards.py:score}]"
    changes = ("iterations=2", "evaluation.every=2", reward, "tracking.enabled=false")
    words += [word for change in changes for word in ("--set", change)]
    results = json.loads(run(folder, *words, environment={"YATT_HOME": str(tmp_path / "runs")}).splitlines()[-1])
    assert results["state"] == "completed" and results["iteration"] == 2
    shown = run(folder, "-m", "yatt", "--home", str(tmp_path / "runs"), "audit", "verify", "latest")
    assert "is sound" in shown
