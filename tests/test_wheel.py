"""The built wheel is complete and claims two names: installed without a checkout, it works beside a user's own packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.api.hostile import hostile_folder
from tests.api.test_names import BOTH

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # it may name the checkout
    finished = subprocess.run(command, cwd=cwd, env=outside, capture_output=True, text=True, timeout=600, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def files_of(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.timeout(900)
def test_an_installed_wheel_runs_doctor_and_schema(tmp_path: Path) -> None:
    """The wheel uses the libraries of the tests' environment, so that nothing has to be downloaded."""
    source = tmp_path / "source"
    run("git", "clone", "-q", ROOT, source, cwd=tmp_path)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("yatt-*.whl")
    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "-q", "--no-deps", "--no-index", "--no-compile", wheel, cwd=tmp_path)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=tmp_path).strip())
    # Path files in that folder are not followed, so the editable install of the checkout stays invisible.
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    yatt = environment / "bin" / "yatt"
    schema = json.loads(run(yatt, "schema", cwd=tmp_path))
    assert schema["title"] == "YATT run spec"
    doctor = run(yatt, "doctor", cwd=tmp_path)
    assert "python" in doctor
    claimed = {path.name for path in site.iterdir()} & {"db", "flows", "ops", "yatt", "yatt_core"}
    assert claimed == {"yatt", "yatt_core"}
    (metadata,) = site.glob("yatt-*.dist-info")
    assert (metadata / "top_level.txt").read_text().split() == ["yatt", "yatt_core"]
    shown = {
        path for path in files_of(source / "ops") if path.parts[0] in ("dashboard", "web") or path.suffix == ".html"
    }
    assert shown <= files_of(site / "yatt" / "ops"), "pages and their assets"
    mine = hostile_folder(tmp_path / "mine")
    where = json.loads(run(python, "-c", BOTH, cwd=mine))
    assert where["own"] == ["flows", "db", "ops"] and where["found"]["yatt.flows.run.home"].startswith(str(site))
    assert not (site / "yatt" / "checkout.py").exists(), "an installation needs no import hook"
    run(python, "-c", "from yatt.db.ledger import Ledger; Ledger.open('l.db').close()", cwd=mine)
    run(yatt, "--home", tmp_path / "runs", "check", source / "configs" / "virtual.yaml", cwd=mine)


@pytest.mark.verify
@pytest.mark.timeout(3600)
def test_the_newest_of_everything_that_the_bounds_allow_trains(tmp_path: Path) -> None:
    """An empty environment without our constraints, as `pip install yatt` makes it; only torch is there already.

    Its newest build for GPUs has some gigabytes, and may not suit the machine.
    """
    source_of_torch = f"torch=={version('torch')}"
    source = tmp_path / "source"
    run("git", "clone", "-q", ROOT, source, cwd=tmp_path)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("yatt-*.whl")
    venv.create(tmp_path / "environment", with_pip=True)
    python, yatt = (tmp_path / "environment" / "bin" / name for name in ("python", "yatt"))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    environment["YATT_HOME"] = str(tmp_path / "runs")
    for command in (
        (python, "-m", "pip", "install", "-q", source_of_torch),
        (python, "-m", "pip", "install", "-q", wheel),
        (yatt, "doctor"),
        (yatt, "train", source / "configs" / "quickstart.yaml", "--until", "20"),
    ):
        done = subprocess.run(
            list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])
