"""The workload of docs/workloads.md: small, on the public contract alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import fields

import pytest

from examples.workloads.word_vectors import Settings, WordVectors
from tests.services import ROOT
from yatt_core.workloads.contract import RunFacts

FILE = ROOT / "examples" / "workloads" / "word_vectors.py"
PUBLIC = {"yatt_core.workloads.contract"}
MOST_LINES = 120


def test_it_is_short_formatted_and_imports_the_contract_alone() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    subprocess.run([sys.executable, "-m", "ruff", "format", "--check", str(FILE)], check=True, cwd=ROOT)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom | ast.Import)]
    names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in nodes}
    ours = {name for name in names if name and name.partition(".")[0] in ("yatt_core", "flows", "ops", "db", "yatt")}
    assert ours == PUBLIC
    assert f"../{FILE.relative_to(ROOT)}" in (ROOT / "docs" / "workloads.md").read_text()


def test_what_shapes_inputs_or_state_is_not_tunable() -> None:
    may_change = {"pairs", "negatives", "rate"}
    WordVectors(RunFacts(seed=1, settings={}, iterations=1, tunable=frozenset(may_change)))
    for field in fields(Settings):
        if field.name not in may_change:
            with pytest.raises(ValueError, match=f"^tunable.{field.name}: shapes the inputs or the state; expected it"):
                WordVectors(RunFacts(seed=1, settings={}, iterations=1, tunable=frozenset({field.name})))
