"""The arithmetic of Bone Soup (arXiv 2502.10762): rewards of the backbones, and coefficients for a preference.

Consumes numbers of objectives, beta and preferences; produces weights. Pure functions.

With n objectives and rewards r, backbone i is trained on h_i = (B r)_i, where B has beta on its diagonal and
g = (1 - beta) / (n - 1) elsewhere. The weights for a preference mu are sum_j lambda_j theta_j with B lambda = mu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from yatt_core.errors import ConfigurationError

Preference = tuple[float, ...]
"""The weight of each objective: not negative, with sum 1."""
FEWEST = 2
MOST = 6
"""Limits of the number of objectives."""
TOLERANCE = 1e-6
"""How far the sum of a preference that a person has typed may be from 1."""


def mixing_matrix(objectives: int, beta: float) -> list[list[float]]:
    """Returns B: row i has the weights of the objectives in the reward of backbone i.

    beta: the weight of the backbone's own objective, above 1 / objectives and at most 1.
    """
    rest = _rest(objectives, beta)
    return [[beta if row == column else rest for column in range(objectives)] for row in range(objectives)]


def coefficients(preference: Sequence[float], beta: float) -> list[float]:
    """Returns lambda, the backbones' coefficients: (mu - g) / (beta - g), which solves B lambda = mu.

    Their sum is 1; that of an objective with a preference below g is negative. With beta 1, they are the preference
    itself, as in Rewarded Soup (arXiv 2306.04488).
    """
    rest = _rest(len(preference), beta)
    return [(weight - rest) / (beta - rest) for weight in preference]


def extrapolated(found: Sequence[float], alpha: float) -> tuple[list[float], float]:
    """Returns the coefficients of (1 + alpha) theta - alpha theta_sft: the models', and the supervised model's."""
    return [(1.0 + alpha) * each for each in found], -alpha


def _rest(objectives: int, beta: float) -> float:
    """Returns g, the weight of each other objective. Raises `ConfigurationError` for a beta that does not fit."""
    if not 1 / objectives < beta <= 1:
        raise ConfigurationError(
            f"beta {beta:g}: with {objectives} objectives, expected more than {1 / objectives:.3g} and at most 1"
        )
    return (1.0 - beta) / (objectives - 1)


def check_preference(preference: Sequence[float], objectives: Sequence[str], origin: str) -> Preference:
    """Returns a preference with a sum of exactly 1. Raises `ConfigurationError`, which begins with the origin."""
    said = ",".join(f"{weight:g}" for weight in preference)
    if len(preference) != len(objectives):
        raise ConfigurationError(
            f"{origin} {said}: expected {len(objectives)} numbers, one for each of {', '.join(objectives)}"
        )
    total = math.fsum(preference)
    if not all(0.0 <= weight <= 1.0 for weight in preference) or abs(total - 1.0) > TOLERANCE:
        raise ConfigurationError(f"{origin} {said}: expected numbers from 0 to 1 with sum 1, not {total:g}")
    return tuple(weight / total for weight in preference)


@dataclass(frozen=True, slots=True)
class PreferenceGrid:
    """Preferences on lines: on an objective's line its weight rises from 0 to 1, and the others share the rest equally.

    preferences: all of them, each once.
    lines: for each objective, the indexes of its line's preferences, in order of its weight.
    """

    preferences: tuple[Preference, ...]
    lines: tuple[tuple[int, ...], ...]


def preference_grid(objectives: int, points: int) -> PreferenceGrid:
    """Returns the grid whose lines have `points` preferences each; two objectives share one line."""
    places: dict[tuple[Fraction, ...], int] = {}
    lines = []
    for objective in range(objectives):
        line = []
        for step in range(points):
            own = Fraction(step, points - 1)
            rest = (1 - own) / (objectives - 1)
            mixed = tuple(own if place == objective else rest for place in range(objectives))
            line.append(places.setdefault(mixed, len(places)))
        lines.append(tuple(line))
    return PreferenceGrid(tuple(tuple(map(float, mixed)) for mixed in places), tuple(lines))
