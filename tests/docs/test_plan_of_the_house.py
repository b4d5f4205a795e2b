"""The map of the code in docs/architecture.md matches the tree: it lists every room in import order."""

from __future__ import annotations

import re

import grimp
import pytest

from tests.services import ROOT

PACKAGES = ("yatt_core", "db", "flows", "ops", "yatt")


def planned(package: str) -> list[str]:
    """Returns the rooms of a package in the order of its table."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = re.search(rf"### `{package}/`.*?(?=\n###? )", text, re.S)
    assert section is not None
    return re.findall(r"^\| `(\w+)/` \|", section.group(), re.M)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_in_the_plan(package: str) -> None:
    rooms = sorted(path.parent.name for path in (ROOT / package).glob("*/__init__.py"))
    assert sorted(planned(package)) == rooms


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_up_the_plan(package: str, graph: grimp.ImportGraph) -> None:
    rooms = planned(package)
    for place, room in enumerate(rooms):
        below = rooms[place + 1 :]
        wrong = [
            (importer, imported)
            for other in below
            for importer, imported in _imports(graph, f"{package}.{room}", f"{package}.{other}")
        ]
        assert wrong == [], f"{room} is listed above what it imports"


def _imports(graph: grimp.ImportGraph, importer: str, imported: str) -> list[tuple[str, str]]:
    modules = {importer} | graph.find_descendants(importer)
    targets = {imported} | graph.find_descendants(imported)
    return [
        (module, found) for module in modules for found in graph.find_modules_directly_imported_by(module) & targets
    ]
