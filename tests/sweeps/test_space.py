"""Spaces: what can be typed, what a grid holds, and values that people can read."""

from __future__ import annotations

from math import log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.sweeps.space import Choices, Dimension, Range, drawn_setting, grid, parse_dimension
from yatt_core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "key", "tree"),
    [
        ("a.b=1e-5..1e-3:log", "a.b", {"low": 1e-5, "high": 1e-3, "log": True}),
        ("a=2..8", "a", {"low": 2, "high": 8, "log": False}),
        ("a=0.5..1:5", "a", {"low": 0.5, "high": 1, "log": False, "points": 5}),
        ("a=-1..1:log:3", "a", {"low": -1, "high": 1, "log": True, "points": 3}),
        ("a=1,2.5,x", "a", {"values": [1, 2.5, "x"]}),
        ("a={kind: linear},{kind: constant}", "a", {"values": [{"kind": "linear"}, {"kind": "constant"}]}),
        ("a=null", "a", {"values": [None]}),
    ],
)
def test_dimensions_are_typed_as_choices_or_ranges(text: str, key: str, tree: dict[str, object]) -> None:
    assert parse_dimension(text) == (key, tree)


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=[1"])
def test_a_dimension_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--over"):
        parse_dimension(text)


@pytest.mark.parametrize(
    "tree",
    [
        {}, {"low": 1}, {"low": 2, "high": 1}, {"low": 0, "high": 1, "log": True}, {"values": []}, {"values": [1, 1]},
        {"values": [1], "low": 0, "high": 1}, {"low": 0, "high": 1, "points": 1}, {"low": 0, "high": float("inf")},
    ],
)  # fmt: skip
def test_a_contradictory_dimension_is_refused(tree: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Dimension.model_validate(tree)


def test_a_grid_holds_every_combination_once_and_the_last_key_changes_fastest() -> None:
    space = {"a": Range(1e-4, 1e-1, log=True, points=4), "b": Choices(("x", "y")), "c": Range(1, 2, points=5)}
    found = list(grid(space))
    assert len(found) == 4 * 2 * 2, "whole numbers between 1 and 2 are two"
    assert found[0] == {"a": 1e-4, "b": "x", "c": 1} and found[1] == {"a": 1e-4, "b": "x", "c": 2}
    assert sorted({setting["a"] for setting in found}) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])


@given(st.integers(0, 2**63), st.booleans())
def test_drawn_values_lie_between_the_bounds_with_few_digits(seed: int, log: bool) -> None:
    space = {"a": Range(1.23e-5, 4.56e-2, log), "b": Range(3, 9, log), "c": Choices((None, [1]))}
    setting = drawn_setting(space, seed)
    assert 1.23e-5 <= setting["a"] <= 4.56e-2 and float(f"{setting['a']:.4g}") == setting["a"]
    assert isinstance(setting["b"], int) and 3 <= setting["b"] <= 9 and setting["c"] in (None, [1])
    assert drawn_setting(space, seed) == setting


def test_a_logarithmic_range_is_drawn_by_ratios() -> None:
    drawn = [drawn_setting({"a": Range(1e-4, 1e-2, log=True)}, seed)["a"] for seed in range(200)]
    assert sum(log10(value) < -3 for value in drawn) == pytest.approx(100, abs=25)
