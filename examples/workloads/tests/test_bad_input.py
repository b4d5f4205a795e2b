"""Data that cannot be used ends `yatt train`, `yatt check` and `yatt submit` with exit code 2 before anything starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ops.cli.main import main

SPECS = Path(__file__).parents[1] / "specs"


def corpus(folder: Path) -> str:
    """A corpus with an empty document."""
    (folder / "documents.jsonl").write_text('{"id": "a", "text": "red apple"}\n{"id": "b", "text": " "}\n')
    (folder / "queries.jsonl").write_text("")
    return f"{folder}/documents.jsonl:2: document 'b' is empty; expected a text of at least one word"


def triples(folder: Path) -> str:
    """A graph with an unknown entity in the test split."""
    for split, text in (("train", "a\tr\tb\nb\tr\tc\n"), ("valid", "a\tr\tc\n"), ("test", "c\tr\ta\nb\tr\tzoe\n")):
        (folder / f"{split}.txt").write_text(text)
    return f"{folder}/test.txt:2: the entity 'zoe' is in no training triple"


def nodes(folder: Path) -> str:
    """A graph with a node without a label in the test split."""
    arrays = {
        "features": np.eye(4),
        "edges": np.array([[0, 1], [2, 3]]),
        "labels": np.array([0, 1, 0, -1]),
        "splits": np.array([0, 0, 1, 2]),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return f"{folder}/labels.npy: node 3 is in the test split and has no label"


def nothing(folder: Path) -> str:
    """A folder that is not there."""
    folder.rmdir()
    return f"workload.settings: {folder}/train.txt: no such file\n"


@pytest.mark.parametrize(
    ("spec", "setting", "write"),
    [
        ("retrieval.yaml", "{method: plain, corpus: FOLDER}", corpus),
        ("ring.yaml", "{folder: FOLDER}", triples),
        ("ring.yaml", "{folder: FOLDER}", nothing),
        ("blocks.yaml", "{folder: FOLDER}", nodes),
    ],
)
def test_bad_data_ends_a_command_before_anything_starts(
    spec: str,
    setting: str,
    write: Callable[[Path], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    said = write(data)
    home = tmp_path / "home"
    monkeypatch.setenv("YATT_HOME", str(home))
    changes = ("--set", f"workload.settings={setting.replace('FOLDER', json.dumps(str(data)))}")
    for command in ("check", "train"):
        assert main([command, str(SPECS / spec), *changes]) == 2
        told = capsys.readouterr().err
        assert said in told and ".py:" not in told and "ValueError" not in told
    assert not home.exists() or not any(home.glob("runs/*")), "no run was created"
