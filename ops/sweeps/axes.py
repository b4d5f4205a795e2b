"""The parallel coordinates of a sweep: an axis for each key and one for the metric, and a line for each trial with a value.

Consumes a `SweepView`. Produces places between 0 and 1 on each axis, which commands and pages draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ops.sweeps.view import SweepView, TrialView
from ops.sweeps.words import short_keys, value_text

MOST_LABELS = 6
LOG_RATIO = 20.0
"""Largest value over smallest from which on an axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """An axis.

    labels: texts and their places from 0, at the bottom, to 1.
    """

    name: str
    labels: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A trial: its place on each axis.

    share: its value from 0, the worst, to 1, the best.
    """

    trial: int
    places: tuple[float, ...]
    share: float
    winner: bool
    said: str


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The picture of a sweep; the last axis is the metric, at the last rung that a trial has reached."""

    axes: tuple[SweepAxis, ...]
    lines: tuple[Line, ...]


def coordinates_of(view: SweepView) -> Coordinates | None:
    """Returns the picture; None before any trial has a value."""
    measured = [trial for trial in view.trials if trial.value is not None]
    if not measured:
        return None
    names = short_keys(view.keys)
    columns = [_column(names[key], [trial.setting[key] for trial in measured]) for key in view.keys]
    values = [trial.value or 0.0 for trial in measured]
    columns.append(_numbers(view.metric, values))
    shares = columns[-1][1]
    lines = tuple(
        Line(
            trial=trial.trial,
            places=tuple(places[index] for _, places in columns),
            share=shares[index] if view.goal == "maximize" else 1.0 - shares[index],
            winner=trial.trial == view.winner,
            said=_said(view, trial),
        )
        for index, trial in enumerate(measured)
    )
    return Coordinates(tuple(axis for axis, _ in columns), lines)


def _said(view: SweepView, trial: TrialView) -> str:
    setting = ", ".join(f"{key} {value_text(trial.setting[key])}" for key in view.keys)
    return f"trial {trial.trial}: {setting}; {view.metric} {trial.value:.4g} at iteration {list(trial.values)[-1]}"


def _column(name: str, values: Sequence[Any]) -> tuple[SweepAxis, list[float]]:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return _numbers(name, values)
    texts = [value_text(value) for value in values]
    known = sorted(set(texts))
    places = {text: index / (len(known) - 1) if len(known) > 1 else 0.5 for index, text in enumerate(known)}
    return SweepAxis(name, tuple((place, text) for text, place in places.items())), [places[text] for text in texts]


def _numbers(name: str, values: Sequence[float]) -> tuple[SweepAxis, list[float]]:
    low = min(values)
    high = max(values)
    if high == low:
        return SweepAxis(name, ((0.5, f"{low:.4g}"),)), [0.5] * len(values)
    is_log = low > 0 and high / low >= LOG_RATIO

    def place(value: float) -> float:
        own, bottom, top = (math.log(each) if is_log else each for each in (value, low, high))
        return (own - bottom) / (top - bottom)

    distinct = sorted(set(values))
    if len(distinct) > MOST_LABELS:
        steps = [step / (MOST_LABELS - 2) for step in range(MOST_LABELS - 1)]
        distinct = [low * (high / low) ** step if is_log else low + (high - low) * step for step in steps]
    return SweepAxis(name, tuple((place(value), f"{value:.3g}") for value in distinct)), [
        place(value) for value in values
    ]
