"""`benchmarks.workloads`: what it trains in pieces is what a run trains whole; intervals; a kept folder goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.workloads import retrieval
from benchmarks.workloads.alone import begun, train
from benchmarks.workloads.found import paired
from examples.workloads.tests.retrieval.ranks import small_settings
from yatt_workloads.retrieval.workload import Retrieval


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Mapping[str, Any]]:
    small = {name: small_settings(**settings) for name, settings in retrieval.METHODS.items()}
    for settings in small.values():
        settings.update({name: 2 for name in ("first", "cross") if name in settings})
    monkeypatch.setattr(retrieval, "METHODS", small)
    monkeypatch.setattr(retrieval, "FIRST", 2)
    return small


def test_methods_that_go_on_from_self_end_as_whole_runs_do(
    methods: Mapping[str, Mapping[str, Any]], tmp_path: Path
) -> None:
    found = retrieval.measure(tmp_path, [7])
    for method, iterations in (("cascade", 6), ("frozen", 4)):
        whole = begun(Retrieval, tmp_path / method, seed=7, iterations=iterations, **methods[method])
        train(whole, 7, 1, iterations)
        figures = found.details["runs"][7][method]
        assert {name: value for name, value in figures.items() if name != "seconds"} == whole.evaluate()
        assert found.figures[f"retrieval_mrr_{method}"] == whole.evaluate()["test/mrr_at_10"]
    assert retrieval.measure(tmp_path, [7]).details == found.details, "seconds too: nothing was trained again"


def test_paired_intervals() -> None:
    found = paired([3.0, 5.0, 7.0], [1.0, 2.0, 3.0])
    assert found["mean"] == 3.0 and found["half_width"] == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert paired([1.0], [0.5]) == {"mean": 0.5}
