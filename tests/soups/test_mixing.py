"""The arithmetic of Bone Soup, against numpy's solver."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flows.soups.mixing import check_preference, coefficients, extrapolated, mixing_matrix, preference_grid
from yatt_core.errors import ConfigurationError


@pytest.mark.parametrize("beta", [0.6, 0.7, 0.8, 1.0])
@pytest.mark.parametrize("objectives", [2, 3, 4, 5, 6])
def test_coefficients_solve_the_system_of_the_mixing_matrix(objectives: int, beta: float) -> None:
    matrix = np.array(mixing_matrix(objectives, beta))
    assert np.allclose(matrix.sum(axis=1), 1.0) and np.allclose(np.diag(matrix), beta)
    for preference in np.random.default_rng(objectives).dirichlet(np.ones(objectives), size=20):
        found = coefficients(preference.tolist(), beta)
        assert np.allclose(found, np.linalg.solve(matrix, preference), atol=1e-12)
        assert math.isclose(math.fsum(found), 1.0, abs_tol=1e-12)


def test_a_preference_below_the_others_share_has_a_negative_coefficient() -> None:
    assert coefficients([1.0, 0.0], 0.75) == pytest.approx([1.5, -0.5])
    assert coefficients([0.3, 0.7], 1.0) == pytest.approx([0.3, 0.7])


def test_extrapolation_keeps_the_sum_of_all_coefficients() -> None:
    models, supervised = extrapolated([0.7, 0.3], 0.5)
    assert models == pytest.approx([1.05, 0.45]) and supervised == -0.5
    assert math.fsum([*models, supervised]) == pytest.approx(1.0)


@pytest.mark.parametrize("beta", [0.5, 0.2, 1.1, float("nan")])
def test_a_beta_without_a_backbone_for_each_objective_is_refused(beta: float) -> None:
    with pytest.raises(ConfigurationError, match="beta"):
        mixing_matrix(2, beta)


@pytest.mark.parametrize("given", [[0.5], [0.7, 0.7], [1.2, -0.2], [0.5, 0.25, 0.25], [float("nan"), 1.0]])
def test_a_preference_that_is_none_is_refused(given: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="--preference"):
        check_preference(given, ["short", "polite"], "--preference")


def test_a_typed_preference_has_sum_one() -> None:
    assert math.fsum(check_preference([0.333333, 0.333333, 0.333334], ["a", "b", "c"], "")) == pytest.approx(
        1, abs=1e-15
    )


def test_on_each_line_of_the_grid_one_weight_rises_and_the_others_share_the_rest() -> None:
    two = preference_grid(2, 11)
    three = preference_grid(3, 11)
    assert len(two.preferences) == 11 and two.lines[0] == tuple(reversed(two.lines[1]))
    assert len(three.preferences) == 33
    for objective, line in enumerate(three.lines):
        chosen = [three.preferences[index] for index in line]
        assert [mixed[objective] for mixed in chosen] == pytest.approx([step / 10 for step in range(11)])
        assert all(len({weight for place, weight in enumerate(mixed) if place != objective}) == 1 for mixed in chosen)
        assert all(math.fsum(mixed) == pytest.approx(1) for mixed in chosen)
