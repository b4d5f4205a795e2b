"""pass@k, majority votes and intervals, against exact fractions, brute force, a bootstrap and simulated tasks."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.evaluation.estimators import (
    effective_trials,
    estimate,
    majority,
    pass_at_k,
    wilson_interval,
)


def test_pass_at_k_is_the_fraction_of_subsets_with_a_correct_answer() -> None:
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            right = [place < c for place in range(n)]
            subsets = list(itertools.combinations(right, k))
            assert pass_at_k(n, c, k) == float(Fraction(sum(map(any, subsets)), len(subsets)))


def test_pass_at_k_agrees_with_the_published_product() -> None:
    """1 - prod(1 - k / i) for i from n - c + 1 to n, as in the appendix of arXiv 2107.03374."""
    for n, c, k in ((200, 3, 100), (200, 197, 1), (4096, 5, 512), (100, 100, 7), (64, 0, 8)):
        published = 1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))
        assert pass_at_k(n, c, k) == pytest.approx(published, rel=1e-12, abs=1e-12)
        exact = 1 - Fraction(1) * np.prod([Fraction(i - k, i) for i in range(n - c + 1, n + 1)], initial=Fraction(1))
        assert n - c < k or pass_at_k(n, c, k) == float(exact)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {c} correct answers in {n}"):
        pass_at_k(n, c, k)


def test_the_most_frequent_answer_wins() -> None:
    assert majority([("7", True), ("8", False), ("7", True)]) == 1.0
    assert majority([("7", True), ("8", False), ("8", False)]) == 0.0
    assert majority([("7", True), ("8", False)]) == 0.5, "a tie"
    assert majority([("7", True), (None, False), (None, False)]) == 1.0, "no answer is no vote"
    assert majority([(None, False), (None, False)]) == 0.0
    assert majority([("7", True), ("7", False), ("8", False)]) == 0.5, "not all of its votes are correct"


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.booleans()), min_size=1, max_size=12), st.randoms())
def test_the_order_of_answers_changes_nothing(votes: list[tuple[str | None, bool]], chance: random.Random) -> None:
    shuffled = list(votes)
    chance.shuffle(shuffled)
    assert majority(shuffled) == majority(votes)


def test_the_confidence_interval_of_a_share() -> None:
    # Values of Wilson's formula from published tables.
    assert wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson_interval(1, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)


def test_one_answer_per_task_is_a_trial_per_task() -> None:
    found = estimate([1.0, 0.0, 1.0, 1.0], 1)
    assert (found.value, (found.low, found.high)) == (0.75, wilson_interval(0.75, 4))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 64))
def test_an_interval_contains_its_estimate(values: list[float], samples: int) -> None:
    found = estimate(values, samples)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert 0 < effective_trials(values, samples) <= len(values) * samples


def test_answers_to_one_task_count_as_one_trial_if_they_are_always_equal() -> None:
    values = [1.0] * 30 + [0.0] * 70
    assert effective_trials(values, 16) == pytest.approx(100)


def test_the_interval_agrees_with_a_bootstrap_over_tasks_and_covers_the_truth() -> None:
    """Of 400 simulated evaluations, about 95 % contain the true accuracy; ignoring the clusters would miss it more often."""
    chance = np.random.default_rng(5)
    values = chance.binomial(8, chance.beta(1, 2, 200)) / 8
    draws = chance.choice(values, (2000, len(values))).mean(axis=1)
    found = estimate(list(values), 8)
    assert (found.low, found.high) == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.01)
    covered = 0
    naive = 0
    for _ in range(400):
        shares = chance.binomial(8, chance.beta(1, 2, 60)) / 8
        each = estimate(list(shares), 8)
        covered += each.low <= 1 / 3 <= each.high
        low, high = wilson_interval(each.value, 60 * 8)
        naive += low <= 1 / 3 <= high
    assert 0.925 <= covered / 400 <= 0.985
    assert naive < 0.9 * covered
