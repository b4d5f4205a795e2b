"""docs/packages and the glossary name modules that exist, and say something of every room; CONTRIBUTING's steps lead to files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.services import ROOT

FOLDER = ROOT / "docs" / "packages"
CODE = ("yatt_core", "db", "flows", "ops", "yatt", "tests", "benchmarks", "clients")
MODULES = [path for part in CODE for path in (ROOT / part).rglob("*.py")]
PATCHES = {path.name for path in (ROOT / "tests" / "sabotage" / "patches").iterdir()}
PAGES = (*sorted(FOLDER.glob("*.md")), ROOT / "docs" / "glossary.md", ROOT / "CONTRIBUTING.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_exists(page: Path):
    text = page.read_text()
    modules = set(re.findall(r"`([\w/]+\.py)`", text))
    ends = {"/".join(path.parts[-count:]) for path in MODULES for count in range(1, 8)}
    assert len(modules) > 3 or page.stem == "index"
    assert modules - ends == set()
    assert set(re.findall(r"`([\w-]+\.patch)`", text)) <= PATCHES
    folders = set(re.findall(rf"`((?:{'|'.join(CODE)})/[\w/]*)`", text))
    assert {folder for folder in folders if not (ROOT / folder).exists()} == set()


@pytest.mark.parametrize("package", ["yatt_core", "db", "flows", "ops"])
def test_every_room_has_its_facts(package: str):
    text = "".join(page.read_text() for page in FOLDER.glob("*.md"))
    rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert {room for room in rooms if not re.search(rf"\b{room}\b", text)} == set()
