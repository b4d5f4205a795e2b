"""A task of reasoning-gym is imported without the others, is the same as in the whole package, and falls back to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inputs.example_specs import SPELL, VIRTUAL, run_spec
from tests.services import ROOT
from yatt_core.datasets import gym, gym_tasks
from yatt_core.engines.ahead import data_modules

ALIKE = ("spell_backward", "chain_sum", "coin_flip", "arc_agi", "knights_knaves")
"""Tasks that read files of the package, and tasks that import it by its name."""
ALONE = """
import json, sys
from yatt_core.datasets import gym, gym_tasks
rows = {}
loaded = {}
for task in sys.argv[1:]:
    assert gym_tasks.one_task(task) is not None, task
    gym.create_task(task, {})
    loaded[task] = [name for name in ("reasoning_gym", "matplotlib", "sympy", "cellpylib") if name in sys.modules]
for task in sys.argv[1:]:
    rows[task] = [[row, gym.score(row["answer"] or "", row)] for row in gym.entries(task, {}, 5, 2)]
import reasoning_gym
print(json.dumps([loaded, rows, len(reasoning_gym.factory.DATASETS), reasoning_gym.create_dataset("leg_counting").category]))
"""
FACTORY = """
from dataclasses import dataclass
DATASETS = {}
class ProceduralDataset:
    def __init__(self, config, seed=None, size=1):
        self.config = config
def register_dataset(name, dataset, config, curriculum=None):
    DATASETS[name] = (dataset, config)
def create_dataset(name, **options):
    dataset, config = DATASETS[name]
    return dataset(config(**options))
@dataclass
class Options:
    seed: int = 0
    size: int = 1
"""
TASK = """
from toy_gym.factory import Options, ProceduralDataset, register_dataset
register_dataset("{task}", ProceduralDataset, Options)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the folder of a package that has the layout of reasoning-gym, in its place."""
    folder = tmp_path / "toy_gym"
    for name in ("coaching", "words"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("SETTING = 1\nfrom .words import alone, needs, other_name\n")
    (folder / "factory.py").write_text(FACTORY)
    words = folder / "words"
    (words / "alone.py").write_text(TASK.format(task="alone"))
    (words / "needs.py").write_text("from toy_gym import SETTING\n" + TASK.format(task="needs"))
    (words / "other_name.py").write_text(TASK.format(task="named"))
    monkeypatch.setattr(gym_tasks, "PACKAGE", "toy_gym")
    monkeypatch.syspath_prepend(tmp_path)
    gym_tasks.one_task.cache_clear()
    gym_tasks.all_tasks.cache_clear()
    yield folder
    gym_tasks.one_task.cache_clear()
    gym_tasks.all_tasks.cache_clear()
    for name in modules_of("toy_gym"):
        del sys.modules[name]


def modules_of(package: str) -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == package]


def test_tasks_alone_are_those_of_the_package_which_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *ALIKE], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
    )
    loaded, rows, tasks, category = json.loads(done.stdout)
    assert loaded == {task: [] for task in ALIKE}
    assert tasks > 100
    assert category == "arithmetic"
    monkeypatch.setattr(gym, "one_task", lambda task: None)
    for task in ALIKE:
        whole = [[row, gym.score(row["answer"] or "", row)] for row in gym.entries(task, {}, 5, 2)]
        assert rows[task] == json.loads(json.dumps(whole)), task


def test_a_task_that_needs_more_of_the_package_has_the_whole(toy: Path) -> None:
    alone = gym_tasks.one_task("alone")
    assert alone is not None
    assert {"alone", "needs", "named"} & alone.DATASETS.keys() == {"alone"}
    for task in ("needs", "named", "other_name", "none", "words/alone", "*"):
        assert gym_tasks.one_task(task) is None
    assert modules_of("toy_gym") == []
    for task in ("needs", "named"):
        gym.create_task(task, {})
    assert {"alone", "needs", "named", "running_sums"} <= gym_tasks.all_tasks().DATASETS.keys()


@pytest.mark.parametrize("moved", ["words/alone.py", "coaching", "factory.py"])
def test_another_layout_has_the_whole(moved: str, toy: Path) -> None:
    (toy / "words" / "deeper").mkdir()
    (toy / moved).rename(toy / "words" / "deeper" / Path(moved).name)
    assert gym_tasks.one_task("alone") is None
    assert modules_of("toy_gym") == []


def test_a_package_that_was_imported_before_is_used(toy: Path) -> None:
    gym_tasks.all_tasks()
    assert gym_tasks.one_task("alone") is None
    assert "toy_gym" in sys.modules


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        (SPELL, ("yatt_core.datasets.gym",)),
        ({**SPELL, "task": "syllogism", "options": {}}, ("yatt_core.datasets.gym", "reasoning_gym")),
    ],
)
def test_workers_have_the_package_from_the_start_if_a_task_needs_it(
    source: dict[str, Any], modules: tuple[str]
) -> None:
    assert data_modules(run_spec(source, **VIRTUAL)) == modules
