"""Predicted tensor bytes against those of the real torch engines, for a model of over 50 million parameters."""

from __future__ import annotations

import pytest

from benchmarks.memory import measure


@pytest.mark.verify
def test_predicted_tensor_bytes_are_within_a_tenth_of_the_measured_ones():
    figures = measure().figures
    assert figures["parameters"] >= 50_000_000
    ratios = {key: value for key, value in figures.items() if key.endswith("_ratio")}
    kinds = ("weights", "gradients", "optimizer", "kv_cache", "activations", "copies")
    assert {kind for kind in kinds for key in ratios if kind in key} == set(kinds)
    assert {key: value for key, value in ratios.items() if abs(value - 1.0) > 0.1} == {}
    assert figures["runtime_bytes"] > 0
