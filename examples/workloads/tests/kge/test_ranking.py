"""Ranks of held-out triples: filtered, with ties, broken scores, and entities divided over ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from examples.workloads.tests.kge.support import alone, on_ranks
from yatt_core.errors import InfrastructureError
from yatt_core.workloads.contract import Ranks
from yatt_workloads.kge.ranking import Queries, TripleRanks, TrueAnswers, ranks_of

KNOWN = np.array([[0, 0, 1], [0, 0, 2], [3, 0, 1], [0, 1, 4]])
"""Entity 2 is another true tail of the first triple, entity 3 another true head."""


def ranked(scores: list[list[float]], inverse: bool = False, ranks: Ranks | None = None) -> TripleRanks:
    ranks = ranks or alone()
    span = ranks.share(5)
    part = torch.tensor(scores, dtype=torch.float64)[:, span.start : span.stop]
    queries = Queries.of(KNOWN[: len(scores)], inverse)
    return ranks_of(scores=part, span=span, queries=queries, answers=TrueAnswers(KNOWN, 2), ranks=ranks)


def test_other_true_answers_are_left_out_and_ties_have_three_ranks() -> None:
    # Of entity 1's rivals, 2 is true too; 3 and 4 are equal to it, 0 is better.
    found = ranked([[9, 5, 8, 5, 5]])
    assert [found.optimistic[0], found.realistic[0], found.pessimistic[0]] == [2, 3, 4]
    # The head 0 is wanted: 3 is true too; 1 is better, 2 and 4 are worse.
    assert ranked([[5, 9, 1, 8, 1]], inverse=True).realistic.tolist() == [2]


def test_metrics_are_means_over_triples() -> None:
    metrics = TripleRanks(np.array([1.0, 3.0]), np.array([1.5, 4.0]), np.array([2.0, 5.0])).metrics()
    assert metrics["mrr"] == pytest.approx((1 / 1.5 + 1 / 4) / 2)
    assert metrics["mrr_optimistic"] == pytest.approx((1 + 1 / 3) / 2)
    assert metrics["mrr_pessimistic"] == pytest.approx((1 / 2 + 1 / 5) / 2)
    assert [metrics[f"hits_{most}"] for most in (1, 3, 10)] == [0, 0.5, 1]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_broken_score_is_never_a_good_one(broken: float) -> None:
    true = ranked([[1, broken, 1, 1, 1]])
    assert true.optimistic.tolist() == true.realistic.tolist() == true.pessimistic.tolist() == [4]
    assert ranked([[broken, 5, 1, 1, broken]]).optimistic.tolist() == [3], "a broken rival stands before"


def test_ranks_that_fail_are_no_ranks_that_agree() -> None:
    def fails(ranks: Ranks) -> None:
        raise InfrastructureError(f"rank {ranks.rank} of {ranks.count} failed")

    with pytest.raises(InfrastructureError, match="rank 0 of 2 failed"):
        on_ranks(2, fails)


def test_entities_divided_over_ranks_give_the_same_ranks() -> None:
    scores = [[9.0, 5, 8, 5, 5], [0, 0, 1, 1, math.nan], [1, 1, 1, 1, 1]]
    whole = ranked(scores)
    for found in on_ranks(2, lambda ranks: ranked(scores, ranks=ranks)):
        assert found.optimistic.tolist() == whole.optimistic.tolist()
        assert found.pessimistic.tolist() == whole.pessimistic.tolist()
