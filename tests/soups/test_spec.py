"""A soup's spec: what is read from the file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.soups.spec import load_soup, parse_soup
from tests.flows.soups.support import RUN, SOUP
from yatt_core.errors import ConfigurationError
from yatt_core.spec import override_spec, parse_spec


def written(folder: Path, run: dict[str, Any], soup: dict[str, Any]) -> Path:
    (folder / "run.yaml").write_text(json.dumps(run))
    (folder / "soup.yaml").write_text(json.dumps(soup))
    return folder / "soup.yaml"


def test_the_runs_have_the_name_of_the_soup_and_the_overrides(tmp_path: Path) -> None:
    soup, run = load_soup(written(tmp_path, {**RUN, "name": "other"}, SOUP), ["iterations=40"])
    assert (run.name, run.iterations, soup.search_iterations(run)) == ("brew", 40, 8)
    assert soup.scales(run) == [2.0, 1.0]


def test_a_row_of_the_matrix_scales_the_weights_of_the_objectives_alone() -> None:
    soup = parse_soup(SOUP, "soup")
    run = parse_spec(RUN, "run")
    mixed = override_spec(run, soup.mixed_weights(run, [0.25, 0.75]), "run")
    assert [part.weight for part in mixed.rewards.parts] == [0.5, 0.5, 0.75]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"objectives": ["brief"]}, "objectives: expected at least 2 items"),
        ({"objectives": ["brief", "brief"]}, "objectives"),
        ({"objectives": ["brief", "polite"]}, "polite"),
        ({"betas": [0.5]}, "betas"),
        ({"betas": [0.6, 0.6]}, "betas"),
        ({"betas": [1.2]}, "betas"),
        ({"search_fraction": 1.0}, "search_fraction"),
        ({"grid_points": 1}, "grid_points"),
        ({"objectivs": []}, "objectives"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    path = written(tmp_path, RUN, {**SOUP, **changes})
    with pytest.raises(ConfigurationError) as refused:
        load_soup(path)
    assert str(path) in str(refused.value) and named in str(refused.value)


def test_an_objective_without_weight_and_virtual_engines_are_refused(tmp_path: Path) -> None:
    parts = [{**part, "weight": 0.0} for part in RUN["rewards"]["parts"]]
    with pytest.raises(ConfigurationError, match="brief"):
        load_soup(written(tmp_path, {**RUN, "rewards": {"parts": parts}}, SOUP))
    virtual = {"rollout": {"engine": {"kind": "virtual"}}, "trainer": {"engine": {"kind": "virtual"}}}
    with pytest.raises(ConfigurationError, match="virtual"):
        load_soup(written(tmp_path, {**RUN, **virtual}, SOUP))
