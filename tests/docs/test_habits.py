"""The changelog has the current version, and decisions are listed and name existing paths."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_the_newest_version_of_the_changelog_is_the_projects():
    releases = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert releases[0] == "Unreleased"
    assert releases[1] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == version("yatt")


def test_decisions_are_numbered_and_listed():
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    assert [path.name for path in DECISIONS if f"({path.name})" not in index or f"<{path.stem}>" not in index] == []


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_its_parts_and_names_places_that_exist(path: Path):
    text = path.read_text()
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == [
        "Context", "Decision", "What it costs", "When to revisit", "Where the code is",
    ]  # fmt: skip
    places = re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.[a-z]+)?)`", text)
    assert [place for place in places if not (ROOT / place).exists()] == []
