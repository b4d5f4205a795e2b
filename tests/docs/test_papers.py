"""docs/papers.md lists the papers that code and pages cite, and its figures are those of the pages that measure."""

from __future__ import annotations

import re

from tests.services import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text()
OTHERS = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "papers.md"]
CODE = [path for package in ("yatt_core", "db", "flows", "ops", "yatt") for path in (ROOT / package).rglob("*.py")]
NUMBER = re.compile(r"\b\d{4}\.\d{5}\b")


def test_each_paper_that_is_cited_is_listed_and_no_other():
    cited = {number for path in (*OTHERS, *CODE) for number in NUMBER.findall(path.read_text())}
    assert set(NUMBER.findall(PAGE)) == cited


def test_each_figure_is_on_a_page_that_measures():
    known = "".join(path.read_text() for path in OTHERS)
    figures = re.findall(r"(?<![\d.])\d\.\d{3}(?!\d)|\d\.\de-7|\d,\d{3}", PAGE)
    assert len(figures) > 60
    assert [figure for figure in figures if figure not in known] == []
