"""The fronts of a soup: its merged models beside Rewarded Soup's and the runs on single objectives.

Consumes a `SoupView`. Produces panels, one for each pair of objectives, which commands and pages draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from ops.soups.view import SoupView
from ops.soups.words import SOUP_NAMES, preference_text

SINGLES = "single objectives"


@dataclass(frozen=True, slots=True)
class Mark:
    """A model in a panel: its rewards in the panel's two objectives, and its preference."""

    x: float
    y: float
    preference: str


@dataclass(frozen=True, slots=True)
class Curve:
    """The models of a soup, in the order of the first objective's weight; or the runs on single objectives."""

    name: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class SoupPanel:
    """Two objectives against each other."""

    across: str
    up: str
    curves: tuple[Curve, ...]


def panels_of(view: SoupView) -> tuple[SoupPanel, ...]:
    """Returns a panel for each pair of objectives; empty before a soup is measured."""
    if not view.soups:
        return ()
    return tuple(
        SoupPanel(view.objectives[x], view.objectives[y], _curves(view, x, y))
        for x, y in combinations(range(len(view.objectives)), 2)
    )


def _curves(view: SoupView, x: int, y: int) -> tuple[Curve, ...]:
    curves = []
    singles: tuple[Mark, ...] = ()
    for soup in view.soups:
        marks = tuple(
            Mark(model.rewards[x], model.rewards[y], preference_text(model.preference))
            for model in sorted(soup.models, key=lambda model: (model.preference[x], -model.preference[y]))
        )
        curves.append(Curve(SOUP_NAMES[soup.stage], marks))
        if soup.beta == 1.0:  # its models for a preference of 1 are the runs themselves
            singles = tuple(
                Mark(model.rewards[x], model.rewards[y], view.objectives[model.preference.index(1.0)])
                for model in soup.models
                if 1.0 in model.preference
            )
    return (*curves, *([Curve(SINGLES, singles)] if singles else []))
