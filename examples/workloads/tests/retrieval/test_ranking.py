"""MRR@10 and Recall@k are those of a full sort; ties and vectors that are not numbers are never good for a score."""

from __future__ import annotations

import numpy as np
import pytest

from yatt_workloads.retrieval.ranking import mean_reciprocal, nearest, ranks_of, recall, searched

NOISE = np.random.default_rng(2)


def vectors(rows: int) -> np.ndarray:
    """Returns vectors of few whole numbers, whose products are exact and often equal."""
    return NOISE.integers(-1, 2, size=(rows, 3)).astype(np.float32)


def figures(
    queries: np.ndarray, documents: np.ndarray, relevant: np.ndarray, k: int, depth: int
) -> tuple[float, float]:
    scores, numbers = nearest(queries, documents, depth)
    return mean_reciprocal(ranks_of(scores, numbers, relevant)), recall(scores, numbers, relevant, k)


def test_figures_are_those_of_all_scores_with_ties_counted_against() -> None:
    queries = vectors(40)
    documents = vectors(90)
    relevant = np.array([[*NOISE.choice(90, 2, replace=False), -1] for _ in queries])
    reciprocal = []
    found = []
    for row, wanted in zip(queries @ documents.T, relevant[:, :2], strict=True):
        best = max(row[wanted])
        others = sum(score >= best for place, score in enumerate(row) if place not in wanted)
        reciprocal.append(1 / (others + 1) if others < 10 else 0.0)
        found.append(np.mean([sum(row >= row[place]) <= 15 for place in wanted]))
    expected = (np.mean(reciprocal), np.mean(found))
    assert 0 < expected[0] < 1 and 0 < expected[1] < 1
    for depth in (searched(15, 90, 2), 40, 90):
        assert figures(queries, documents, relevant, k=15, depth=depth) == pytest.approx(expected)


def test_an_encoder_that_has_collapsed_scores_nothing() -> None:
    same = np.ones((50, 4), dtype=np.float32)
    relevant = np.arange(20)[:, None]
    assert figures(same[:20], same, relevant, k=15, depth=searched(15, 50, 1)) == (0.0, 0.0)
    several = np.array([range(6), range(20, 26), range(44, 50)])
    for k in range(1, 11):
        assert figures(same[:3], same, several, k=k, depth=searched(k, 50, 6)) == (0.0, 0.0)


def test_vectors_that_are_no_numbers_are_an_error() -> None:
    broken = vectors(30)
    broken[7, 1] = np.nan
    with pytest.raises(ValueError, match="documents: 1 of 30 vectors are not finite; the first is 7"):
        nearest(vectors(3), broken, 10)
    with pytest.raises(ValueError, match="queries: 1 of 30"):
        nearest(broken, vectors(40), 10)
    with pytest.raises(ValueError, match="scores of 1 of 1 queries are not finite"):
        ranks_of(np.full((1, 2), np.nan, np.float32), np.array([[0, 1]]), np.array([[0]]))
    with pytest.raises(ValueError, match="a search for 50 of 40 documents"):
        nearest(vectors(3), vectors(40), 50)
