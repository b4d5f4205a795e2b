"""Paired tests: exact against enumeration, independent of order, and of the right size."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.evaluation.paired import accuracy_of, bootstrap, compare, scored_by_both, sign_test

SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=30
)


def scored(values: list[float]) -> dict[tuple[str, str], float]:
    return {("set", str(number)): value for number, value in enumerate(values)}


@given(st.integers(0, 8), st.integers(0, 8))
def test_the_sign_test_equals_the_enumeration_of_all_coin_tosses(wins: int, losses: int) -> None:
    tosses = list(itertools.product((0, 1), repeat=wins + losses))
    expected = sum(sum(each) >= wins for each in tosses) / len(tosses)
    assert sign_test(wins, losses) == pytest.approx(expected, abs=1e-15)


def test_known_values_of_mcnemars_exact_test() -> None:
    assert sign_test(5, 0) == 1 / 32
    assert sign_test(0, 0) == 1.0
    found = compare(scored([1, 1, 1, 1, 1, 0, 1]), scored([0, 0, 0, 0, 0, 0, 1]))
    assert (found.wins, found.losses, found.tasks, found.p_value) == (5, 0, 7, 1 / 32)
    assert found.difference == pytest.approx(5 / 7)
    assert found.is_better(0.05) and not found.is_better(0.03)


@pytest.mark.parametrize("test", ["mcnemar", "bootstrap"])
@given(pairs=SCORES, seed=st.integers(0, 3))
def test_a_test_depends_on_the_scores_alone(test: str, pairs: list[tuple[float, float]], seed: int) -> None:
    first = scored([a for a, _ in pairs])
    second = scored([b for _, b in pairs])
    found = compare(first, second, test, 200, seed)  # type: ignore[arg-type]
    shuffled = dict(reversed(first.items()))
    assert compare(shuffled, second, test, 200, seed) == found  # type: ignore[arg-type]
    assert 0 < found.p_value <= 1
    back = compare(second, first, test, 200, seed)  # type: ignore[arg-type]
    assert (back.wins, back.losses, back.difference) == (found.losses, found.wins, -found.difference)
    assert not (found.is_better(0.4) and back.is_better(0.4))


def test_the_bootstrap_agrees_with_the_binomial_distribution_and_counts_the_sample_itself() -> None:
    values = [1.0] * 60 + [-1.0] * 40
    expected = sum(math.comb(100, k) * 0.6**k * 0.4 ** (100 - k) for k in range(51))
    assert bootstrap(values, 20_000, 1) == pytest.approx(expected, abs=0.005)
    assert bootstrap([1.0] * 9, 99, 1) == 0.01
    assert bootstrap([0.0] * 9, 99, 1) == 1.0


def test_the_bootstrap_is_the_same_however_much_is_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1.0, -1.0, 1.0, 0.0, 1.0]
    whole = bootstrap(values, 1000, 3)
    monkeypatch.setattr("yatt_core.evaluation.paired.DRAWN_AT_ONCE", 50)
    assert bootstrap(values, 1000, 3) == whole


def test_different_tasks_cannot_be_compared() -> None:
    for other in ({}, {("set", "1"): 1.0}, {("set", "0"): 1.0, ("set", "1"): 0.0}):
        with pytest.raises(ValueError, match="same tasks"):
            compare(scored([1.0]), other)


def test_a_task_is_compared_only_where_both_have_a_score() -> None:
    own = {("sums", "7"): 0.25, ("sums", "8"): None, ("words", "7"): 1.0}
    other = {("sums", "7"): 1.0, ("sums", "8"): 0.5, ("words", "7"): None}
    assert scored_by_both(own, other) == ({("sums", "7"): 0.25}, {("sums", "7"): 1.0})
    assert scored_by_both(own, {("sums", "7"): 1.0}) == ({}, {}), "another set of tasks"
    assert accuracy_of({"correct": 1, "samples": 4}) == 0.25
    assert accuracy_of({"correct": 0, "samples": 0}) is None
