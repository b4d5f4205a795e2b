"""The package of workloads installs beside YATT's wheel: its specs and recognisers are there, and each training runs by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installed import installed_wheel, outside
from tests.services import ROOT

pytestmark = [pytest.mark.verify, pytest.mark.timeout(1200)]

SHORT = ("iterations=2", "checkpoints.every=2", "evaluation.every=2", "trainer.engine.ranks=1")
RETRIEVAL = {
    "documents": 60, "train_queries": 80, "dev_queries": 20, "test_queries": 20, "steps": 2, "batch": 8, "width": 16,
    "recall_at": 20, "method": "self", "first": 0, "cross": 0,
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "retrieval": RETRIEVAL,
    "ring": {"generated": {"entities": 12, "relations": 8}, "members": [{"model": "note", "width": 8}], "batch": 32},
    "blocks": {"generated": {"nodes": 120, "classes": 3, "within": 8, "across": 2}, "width": 8},
}


class Installation:
    """Two wheels in an environment of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = installed_wheel(folder, ["examples/workloads"])

    def run(self, *words: str) -> str:
        known = outside(self.programs, self.folder)
        done = subprocess.run(
            [str(self.programs / words[0]), *words[1:]],
            cwd=self.folder,
            env=known,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    yield Installation(tmp_path_factory.mktemp("workloads"))


def test_it_is_the_wheel_with_all_specs(installation: Installation) -> None:
    code = "import yatt_workloads; print(yatt_workloads.__path__[0])"
    place = Path(installation.run("python", "-c", code).strip())
    assert place.is_relative_to(installation.folder)
    specs = ROOT / "examples" / "workloads" / "yatt_workloads" / "specs"
    assert {path.name for path in (place / "specs").iterdir()} == {path.name for path in specs.glob("*.yaml")}


@pytest.mark.parametrize("name", RUNS)
def test_each_training_runs_by_the_name_of_its_spec(name: str, installation: Installation) -> None:
    changes = [*SHORT, f"workload.settings={json.dumps(RUNS[name])}"]
    words = [word for change in changes for word in ("--set", change)]
    installation.run("yatt", "train", f"yatt_workloads:{name}", *words)
    shown = json.loads(installation.run("yatt", "show", "latest", "-o", "json").splitlines()[-1])
    assert (shown["iteration"], shown["state"]) == (2, "completed")
    installation.run("yatt", "audit", "verify", "latest")


def test_init_knows_a_folder_of_triples(installation: Installation) -> None:
    triples = installation.folder / "triples"
    triples.mkdir()
    lines = {"train": "a\tr\tb\nb\tr\tc\nc\tr\ta\na\tr\tc\n", "valid": "b\tr\ta\n", "test": "c\tr\tb\n"}
    for split, text in lines.items():
        (triples / f"{split}.txt").write_text(text)
    installation.run("yatt", "init", "triples")
    small = "workload.settings={folder: ., members: [{model: transe, width: 4}]}"
    installation.run("yatt", "check", "triples/triples.yaml", "--set", small)
