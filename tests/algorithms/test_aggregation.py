"""Token weights against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.algorithms.aggregation import token_weights


@given(st.lists(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=6), min_size=1, max_size=6))
def test_weighted_sums_are_the_means(losses: list[list[float]]) -> None:
    lengths = np.array([len(row) for row in losses])

    def weighted(aggregation: str) -> float:
        weights = token_weights(lengths, aggregation, 9)  # type: ignore[arg-type]
        return float(sum(weight * sum(row) for weight, row in zip(weights, losses, strict=True)))

    everything = [value for row in losses for value in row]
    assert weighted("token_mean") == pytest.approx(np.mean(everything), abs=1e-9)
    assert weighted("sequence_mean") == pytest.approx(np.mean([np.mean(row) for row in losses]), abs=1e-9)
    assert weighted("fixed_length") == pytest.approx(sum(everything) / (len(losses) * 9), abs=1e-9)


def test_a_response_without_tokens_still_counts_as_a_sequence() -> None:
    lengths = np.array([2, 0])
    assert token_weights(lengths, "sequence_mean", 9)[0] == 0.25
    assert np.isfinite(token_weights(np.array([0]), "token_mean", 9)).all()
