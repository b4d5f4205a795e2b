"""A function's docstring begins with a verb in the third person; a command's help is in the imperative."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.services import ROOT

COMMAND_DECORATORS = frozenset({"command", "callback"})
NAMED_BY_WHAT_THEY_ARE = frozenset({"property", "cached_property", "setter"})


def functions(package: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields each function and its location."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if "versions" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def decorators(function: ast.FunctionDef) -> frozenset[str]:
    called = [node.func if isinstance(node, ast.Call) else node for node in function.decorator_list]
    return frozenset(node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in called)


@pytest.mark.parametrize("package", ["flows", "yatt_core", "db", "ops", "yatt"])
def test_a_docstring_begins_with_a_verb(package: str) -> None:
    odd = []
    for place, function in functions(package):
        text = ast.get_docstring(function)
        names = decorators(function)
        if text is None or names & NAMED_BY_WHAT_THEY_ARE:
            continue
        verb = r"[A-Z][a-z]+\b" if names & COMMAND_DECORATORS else r"([A-Z][a-z]*s|See)\b"
        if not re.match(verb, text):
            odd.append(f"{place}: {text.splitlines()[0]}")
    assert odd == []
