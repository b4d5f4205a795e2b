"""The names of an installation: imports of the parts are renamed, line by line, and nothing else is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from yatt.renaming import PARTS, renamed

ROOT = Path(__file__).parents[2]
FILES = sorted(path for part in (*PARTS, "yatt") for path in (ROOT / part).rglob("*.py"))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("from flows.run.home import Home", "from yatt.flows.run.home import Home"),
        ("from   db import ledger", "from   yatt.db import ledger"),
        ("def f():\n    from ops.cli import main\n", "def f():\n    from yatt.ops.cli import main\n"),
        ("ä = 1; from ops.cli import main", "ä = 1; from yatt.ops.cli import main"),
        ("from flows.a import (\n    b,\n)\n", "from yatt.flows.a import (\n    b,\n)\n"),
        ('"""\nfrom flows.a import b\n"""\n', '"""\nfrom flows.a import b\n"""\n'),
        ("from yatt_core.spec import RunSpec", "from yatt_core.spec import RunSpec"),
        ("from flowschart import x\nimport opsy, dbus\n", "from flowschart import x\nimport opsy, dbus\n"),
        ("from . import flows\nfrom .db import x\n", "from . import flows\nfrom .db import x\n"),
        ("x = '\x0c'\nfrom db import y", "x = '\x0c'\nfrom yatt.db import y"),
    ],
)
def test_imports_of_parts_are_renamed(written: str, read: str) -> None:
    assert renamed(written) == read


def test_an_import_that_binds_the_name_of_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"line 2: write `from flows\.run import"):
        renamed("import os\nimport flows.run\n")


def test_every_module_can_be_renamed_and_then_imports_no_part_by_its_short_name() -> None:
    assert len(FILES) > 300
    for path in FILES:
        source = path.read_text(encoding="utf-8")
        text = renamed(source)
        assert text.count("\n") == source.count("\n"), path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                assert node.module.partition(".")[0] not in PARTS, path


def test_modules_name_each_other_in_text_by_the_names_that_they_have_themselves() -> None:
    """A name in a string, such as that of a child's module, would be the repository's in an installation too."""
    allowed = {"ops/bootstrap.py", "yatt/renaming.py"}
    found = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if name not in allowed and text.isascii() and text.replace(".", "").replace("_", "").isalpha():
                found += [f"{name}: {text}"] if text.partition(".")[0] in PARTS and "." in text else []
    assert found == []
