"""A function's docstring begins with a verb in the third person; a command's help is in the imperative."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.services import ROOT

COMMANDS = "ops/cli/commands/"
NAMED_BY_WHAT_THEY_ARE = frozenset({"property", "cached_property", "setter"})


def functions(package: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields each function and its location."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if "versions" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def is_property(function: ast.FunctionDef) -> bool:
    names = {
        node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in function.decorator_list
    }
    return bool(names & NAMED_BY_WHAT_THEY_ARE)


@pytest.mark.parametrize("package", ["flows", "yatt_core", "db", "ops", "yatt"])
def test_a_docstring_begins_with_a_verb(package: str) -> None:
    odd = []
    for place, function in functions(package):
        text = ast.get_docstring(function)
        if text is None or is_property(function):
            continue
        verb = r"[A-Z][a-z]+\b" if place.startswith(COMMANDS) else r"([A-Z][a-z]*s|See)\b"
        if not re.match(verb, text):
            odd.append(f"{place}: {text.splitlines()[0]}")
    assert odd == []
