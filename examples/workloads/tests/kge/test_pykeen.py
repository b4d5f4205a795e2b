"""Beside PyKEEN, in the environment of the peers: the same filtered MRR of the same scores, for each kind of rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import peer_environment
from benchmarks.workloads.kge import largest_difference, of_random_scores, triples_of
from yatt_workloads.kge.triples import write_graph_of

pytestmark = [
    pytest.mark.verify,
    pytest.mark.skipif(not peer_environment.is_there(), reason="needs the peers' environment: make peers"),
]


@pytest.mark.parametrize("data", ["kinships", "umls"])
def test_evaluation_with_ties_is_pykeens(data: str, tmp_path: Path) -> None:
    write_graph_of(triples_of(data), tmp_path)
    ours, _ = of_random_scores(tmp_path, 1)
    assert ours["pessimistic"] < ours["realistic"] < ours["optimistic"], "there are ties"
    assert largest_difference(tmp_path, data, 1) < 1e-5
