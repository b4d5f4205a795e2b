"""The workload of docs/workloads.md: small, on the public contract alone."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests.services import ROOT

FILE = ROOT / "examples" / "workloads" / "word_vectors.py"
PUBLIC = {"yatt_core.workloads.contract"}
MOST_LINES = 125


def test_it_is_short_formatted_and_imports_the_contract_alone() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    subprocess.run([sys.executable, "-m", "ruff", "format", "--check", str(FILE)], check=True, cwd=ROOT)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom | ast.Import)]
    names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in nodes}
    ours = {name for name in names if name and name.partition(".")[0] in ("yatt_core", "flows", "ops", "db", "yatt")}
    assert ours == PUBLIC
    assert f"../{FILE.relative_to(ROOT)}" in (ROOT / "docs" / "workloads.md").read_text()
