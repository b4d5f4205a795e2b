"""Pareto fronts, hypervolumes and rank correlations, against other ways to compute them."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from scipy.stats import kendalltau

from flows.soups.fronts import hypervolume, kendall_tau_b, pareto_front, worst_of


def by_inclusion_and_exclusion(points: list[list[float]], reference: list[float]) -> float:
    total = 0.0
    for chosen in product((False, True), repeat=len(points)):
        corners = [point for point, taken in zip(points, chosen, strict=True) if taken]
        if corners:
            sides = [
                max(0.0, min(column) - low) for column, low in zip(zip(*corners, strict=True), reference, strict=True)
            ]
            total += (-1) ** (len(corners) + 1) * prod(sides)
    return total


@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_the_hypervolume_is_the_volume_of_the_union_of_boxes(dimensions: int) -> None:
    random = np.random.default_rng(dimensions)
    for _ in range(20):
        points = random.integers(0, 6, size=(7, dimensions)).astype(float).tolist()
        reference = [1.0] * dimensions
        assert hypervolume(points, reference) == pytest.approx(by_inclusion_and_exclusion(points, reference))


def test_points_at_the_reference_add_nothing() -> None:
    assert hypervolume([[1.0, 5.0], [3.0, 0.0]], [1.0, 0.0]) == 0.0
    assert hypervolume([], [0.0, 0.0]) == 0.0
    assert hypervolume([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]], [0.0, 0.0]) == 3.0


def test_the_front_has_the_points_that_none_dominates() -> None:
    points = [[1.0, 3.0], [2.0, 2.0], [2.0, 1.0], [3.0, 1.0], [2.0, 2.0], [0.0, 0.0]]
    assert pareto_front(points) == [0, 1, 3]
    assert worst_of(points) == [0.0, 0.0]


def test_kendalls_tau_b_is_that_of_scipy() -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        one, other = random.integers(0, 5, size=(2, 11)).tolist()
        assert kendall_tau_b(one, other) == pytest.approx(kendalltau(one, other, variant="b").statistic)
    assert kendall_tau_b([1.0, 2.0, 3.0], [0.1, 0.2, 0.9]) == 1.0
    assert kendall_tau_b([1.0, 2.0, 3.0], [0.5, 0.5, 0.5]) == 0.0
