"""A run's first session copies inputs that the home keeps, and keeps those that it has built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.driver.actors_start import ActorsStart
from flows.driver.attachment import RAY_VARIABLE
from flows.run.home import Home
from tests.inputs.example_specs import VIRTUAL, run_spec, write_jsonl
from yatt_core.input_building.materialise import materialise
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.spec import RunSpec


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    rows = [{"prompt": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(200)]
    return run_spec(write_jsonl(tmp_path / "rows.jsonl", rows), **VIRTUAL)


def begin(home: Home, run: str, spec: RunSpec, term: int = 1) -> bool:
    """Begins a session; returns True if its actors found inputs in the run's folder."""
    folder = home.run_folder(run)
    folder.mkdir(parents=True)
    found = list[bool]()

    def build(say: Callable[[str], None]) -> InputsReceipt:
        found.append((folder / "inputs").exists())
        return materialise(spec, folder)

    observer = SimpleNamespace(stage=lambda _: None)
    fence = SimpleNamespace(term=term)
    context: Any = SimpleNamespace(home=home, spec=spec, folder=folder, observer=observer, fence=fence)
    actors: Any = SimpleNamespace(materialise=build)
    nothing: Any = None
    start = ActorsStart(lambda: None)
    start.enter_branch(context, actors, nothing)
    assert start._settled_inputs().train_prompts > 0
    return found == [True]


def test_a_run_copies_what_another_has_built(spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "runs")
    assert not begin(home, "test-1", spec)
    assert begin(home, "test-2", spec)
    assert not begin(home, "test-3", spec, term=2), "a durable tier may have inputs of its first session"
    monkeypatch.setenv(RAY_VARIABLE, "10.0.0.1:6379")
    assert not begin(home, "test-4", spec), "its actors may not see the folder"


def test_a_session_on_a_cluster_that_exists_keeps_nothing(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RAY_VARIABLE, "10.0.0.1:6379")
    home = Home(tmp_path / "runs")
    begin(home, "test-1", spec)
    assert [path.name for path in home.folder.iterdir()] == ["test-1"]
