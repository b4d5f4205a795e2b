"""Measures of a set of models by their rewards: Pareto front, hypervolume, and how well rewards follow preferences.

Consumes points, one reward per objective, of which more is better; produces numbers. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = Sequence[float]


def worst_of(points: Sequence[Point]) -> list[float]:
    """Returns the lowest reward of each objective."""
    return [min(column) for column in zip(*points, strict=True)]


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Returns the indexes of the points that no other point dominates, in order; of equal points, the first."""
    return [
        index
        for index, point in enumerate(points)
        if not any(
            _dominates(other, point) or (number < index and tuple(other) == tuple(point))
            for number, other in enumerate(points)
        )
    ]


def _dominates(one: Point, other: Point) -> bool:
    """Returns True if a point is at least as good as another one in everything, and better in something."""
    return all(a >= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Returns the volume between the reference and the points: of what at least one point dominates.

    Exact in any number of dimensions, by slices along the last one (While et al., 2006, HSO); for fronts of up to some
    hundred points. Points that are not better than the reference in every objective add nothing.
    """
    above = [tuple(point) for point in points if all(a > b for a, b in zip(point, reference, strict=True))]
    if not above:
        return 0.0
    if len(reference) == 1:
        return max(point[0] for point in above) - reference[0]
    front = sorted((above[index] for index in pareto_front(above)), key=lambda point: -point[-1])
    floors = [*(point[-1] for point in front[1:]), reference[-1]]
    slices = (
        (point[-1] - floor) * hypervolume([each[:-1] for each in front[: number + 1]], reference[:-1])
        for number, (point, floor) in enumerate(zip(front, floors, strict=True))
        if point[-1] > floor
    )
    return math.fsum(slices)


def kendall_tau_b(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns Kendall's rank correlation with the correction for ties (tau-b); 0 if one of the sequences is constant.

    (C - D) / sqrt((P - T)(P - U)) with C concordant and D discordant of P pairs, T tied in one sequence and U in the
    other.
    """
    if len(one) != len(other):
        raise ValueError(f"{len(one)} and {len(other)} values; expected as many of each")
    balance = 0
    untied = 0
    others_untied = 0
    for last in range(len(one)):
        for first in range(last):
            left = _sign(one[last] - one[first])
            right = _sign(other[last] - other[first])
            balance += left * right
            untied += abs(left)
            others_untied += abs(right)
    return balance / math.sqrt(untied * others_untied) if untied and others_untied else 0.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
