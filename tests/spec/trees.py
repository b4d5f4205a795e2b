"""Small spec trees and files for the spec's tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec, load_spec, parse_spec
from yatt_core.spec.reading.documents import yaml_text

ROOT = Path(__file__).resolve().parents[2]
VIRTUAL = {"rollout": {"engine": {"kind": "virtual"}}, "trainer": {"engine": {"kind": "virtual"}}}


def tree(**changes: Any) -> dict[str, Any]:
    """Returns the smallest spec with changes at dotted places (`rollout__engine__kind`, list indexes as numbers)."""
    whole: dict[str, Any] = {
        "name": "test",
        "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward"}]},
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
    }
    whole = copy.deepcopy(whole)
    for place, value in changes.items():
        node: Any = whole
        *above, last = place.split("__")
        for key in above:
            node = node[int(key)] if isinstance(node, list) else node.setdefault(key, {})
        node[int(last) if isinstance(node, list) else last] = value
    return whole


def spec(**changes: Any) -> RunSpec:
    return parse_spec(tree(**changes), "test")


def mistakes(**changes: Any) -> list[str]:
    """Returns the lines of the error that the changes cause, without their origin."""
    with pytest.raises(ConfigurationError) as caught:
        spec(**changes)
    lines = str(caught.value).splitlines()
    assert all(line.startswith("test: ") for line in lines)
    return [line.removeprefix("test: ") for line in lines]


def write(path: Path, value: Any) -> Path:
    """Writes a tree as YAML, or text unchanged, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else yaml_text(value), encoding="utf-8")
    return path


def refusal(path: Path, *overrides: str) -> list[str]:
    """Returns the lines of the error with which a file is refused."""
    with pytest.raises(ConfigurationError) as caught:
        load_spec(path, overrides)
    return str(caught.value).splitlines()


def tells(line: str, *facts: str) -> bool:
    """Returns True if a line starts with the first fact, such as a key, and contains the others: keys, values, numbers."""
    return line.startswith(facts[0]) and all(fact in line for fact in facts)
