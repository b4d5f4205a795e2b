"""The notebook: without outputs, of names that exist, and its cells run from the first to the last."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import yatt
from tests.services import ROOT

NOTEBOOK = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_has_no_outputs_and_uses_names_of_the_api() -> None:
    assert NOTEBOOK["nbformat"] == 4 and len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    assert all(
        not cell["outputs"] and cell["execution_count"] is None for cell in NOTEBOOK["cells"] if "outputs" in cell
    )
    used = {
        node.attr
        for text in CODE
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "yatt"
    }
    assert {"Spec", "plan", "train", "resume"} <= used <= set(yatt.__all__)


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_its_cells_run(tmp_path: Path, service_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MPLBACKEND", "agg")
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path / "examples")
    names: dict[str, Any] = {"__name__": "notebook"}
    for text in CODE:
        exec(compile(text, "notebook.ipynb", "exec"), names)
    assert names["run"].state.state == names["fork"].state.state == "completed"
    assert names["report"].sound and list(names["curve"].index) == list(range(7))
    assert names["fork"].state.iteration == 6
