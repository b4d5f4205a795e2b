"""Parallel coordinates: a place between 0 and 1 on each axis, ratios where values span orders of magnitude."""

from __future__ import annotations

from typing import Any

from ops.sweeps.axes import coordinates_of
from ops.sweeps.view import SweepView, TrialView
from ops.sweeps.words import short_keys


def view_of(trials: list[tuple[dict[str, Any], dict[int, float]]], goal: str = "maximize") -> SweepView:
    keys = tuple(trials[0][0])
    views = tuple(
        TrialView(number, setting, "stopped", 4, values, None, {}) for number, (setting, values) in enumerate(trials)
    )
    return SweepView(
        "s-1",
        "tpe",
        True,
        "accuracy",
        goal,
        len(trials),
        (4, 16),
        (0,),
        keys,
        (),
        (),
        views,
        1,
        (1,),
        0.5,
        {},
        0,
        0.0,
        "",
    )


TRIALS: list[tuple[dict[str, Any], dict[int, float]]] = [
    ({"a.rate": 1e-4, "b": "x", "c.rate": 1}, {4: 0.1}),
    ({"a.rate": 1e-3, "b": None, "c.rate": 2}, {4: 0.2, 16: 0.5}),
    ({"a.rate": 1e-2, "b": "x", "c.rate": 3}, {4: 0.3}),
    ({"a.rate": 1e-2, "b": "x", "c.rate": 3}, {}),
]


def test_lines_have_a_place_on_each_axis() -> None:
    found = coordinates_of(view_of(TRIALS))
    assert found is not None
    assert [axis.name for axis in found.axes] == ["a.rate", "b", "c.rate", "accuracy"]
    places = [[round(place, 6) for place in line.places] for line in found.lines]
    assert places == [[0, 1, 0, 0], [0.5, 0, 0.5, 1], [1, 1, 1, 0.5]], "a trial without a value has no line"
    assert [line.winner for line in found.lines] == [False, True, False]
    assert "accuracy 0.5 at iteration 16" in found.lines[1].said


def test_the_smallest_value_is_the_best_if_the_goal_says_so() -> None:
    found = coordinates_of(view_of(TRIALS, "minimize"))
    assert found is not None and [round(line.share, 6) for line in found.lines] == [1, 0, 0.5]


def test_without_a_value_there_is_no_picture() -> None:
    assert coordinates_of(view_of(TRIALS[3:])) is None


def test_keys_are_shortened_as_far_as_they_differ() -> None:
    assert short_keys(["a.b.c", "x.c", "y.d"]) == {"a.b.c": "b.c", "x.c": "x.c", "y.d": "d"}
