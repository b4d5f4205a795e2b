"""Each place that the page of surprises names exists."""

from __future__ import annotations

import re

from tests.services import ROOT


def test_what_keeps_a_surprise_away_exists() -> None:
    text = (ROOT / "docs" / "surprises.md").read_text()
    places = re.findall(r"[`(]((?:[a-z_]+/)*[a-z_-]+\.(?:py|md|toml))[`)]", text)
    known = [place for place in places if not ((ROOT / place).exists() or (ROOT / "docs" / place).exists())]
    assert len(places) > 30 and known == []


def test_the_tests_that_it_names_have_these_names() -> None:
    text = (ROOT / "docs" / "surprises.md").read_text()
    named = re.findall(r"`(tests/[a-z_/]+\.py)`, \*([^*]+)\*", text)
    missing = [name for path, name in named if re.sub(r"\W+", "_", name) not in (ROOT / path).read_text()]
    assert len(named) >= 3 and missing == []
