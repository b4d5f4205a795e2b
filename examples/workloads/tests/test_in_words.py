"""What the three trainings show to people: an iteration in words, and what an evaluation found by k, relation and class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from examples.workloads.tests.kge import support as kge
from examples.workloads.tests.retrieval.ranks import SMALL, small
from examples.workloads.tests.unimp import support as unimp
from yatt_core.workloads.contract import Draw, RunFacts, Shows, Tabulates
from yatt_workloads.retrieval.records import DOCUMENTS
from yatt_workloads.retrieval.workload import MinedRetrieval, Retrieval

DRAW = Draw(5, 1, 0)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_retriever_shows_queries_documents_and_recall_by_k(tmp_path: Path) -> None:
    workload = small(Retrieval, tmp_path / "inputs", 2, method="self")
    assert isinstance(workload, Tabulates) and isinstance(workload, Shows)
    metrics = workload.evaluate()
    tables = workload.tables()
    recall = tables["recall_by_k"]
    assert recall.columns == ("k", "dev", "dev late", "test", "test late")
    assert [row[0] for row in recall.rows] == [1, 2, 3, 5, 10, 20]
    assert recall.rows[-1][1] == pytest.approx(metrics["dev/recall_at_20"])
    assert all(np.diff([row[3] for row in recall.rows]) >= 0)
    query, relevant, rank, best = tables["searches"].rows[0]
    assert query.split()[0].startswith("c") and relevant.startswith("d")
    assert (rank == 1) == (best.split(", ")[0] == relevant)
    columns = workload.draw(DRAW)
    shown = workload.shown(columns)
    step, query, document, others = shown.rows[0]
    name, _, text = document.partition(": ")
    number = int(name.removeprefix("d"))
    assert step == 1 and number == columns["candidates"][0, 0, 0] and set(query.split()) & set(text.split())
    assert f'"text": "{text}"' in (tmp_path / "inputs" / DOCUMENTS).read_text().splitlines()[number]
    assert len(others.split(", ")) == columns["candidates"].shape[-1] - 1


def test_a_knowledge_graph_shows_names_and_hits(tmp_path: Path) -> None:
    settings = {**kge.RING, "members": [{"model": "rotate", "width": 8}, {"model": "deepwalk", "width": 8}]}
    workload = kge.begun(tmp_path, kge.alone(), settings)
    metrics = workload.evaluate()
    tables = workload.tables()
    by_k = {row[0]: row[1:] for row in tables["hits_by_k"].rows}
    for k in (1, 3, 10):
        assert by_k[k] == (metrics[f"valid/hits_{k}"], metrics[f"test/hits_{k}"])
    assert tables["hits_by_relation"].columns == ("relation", "MRR", "hits at 10")
    assert all(row[0].startswith("relation ") for row in tables["hits_by_relation"].rows)
    columns = workload.draw(DRAW)
    first = workload.shown(columns).rows[0]
    head, relation, tail = columns["0.positives"][0].tolist()
    assert first[1:4] == (f"entity {head}", f"relation {relation}", f"entity {tail}")
    assert {row[2] for row in workload.shown(columns).rows if "deepwalk" in row[0]} == {"is near"}


def test_a_graph_of_nodes_shows_classes(tmp_path: Path) -> None:
    workload = unimp.begun(tmp_path, unimp.BLOCKS)
    metrics = workload.evaluate()
    table = workload.tables()["accuracy_by_class"]
    assert table.columns == ("class", "valid", "test") and [row[0] for row in table.rows] == [
        f"class {n}" for n in range(3)
    ]
    assert min(row[2] for row in table.rows) <= metrics["test/accuracy"] <= max(row[2] for row in table.rows)
    columns = workload.draw(DRAW)
    step, node, name, neighbours, same = workload.shown(columns).rows[0]
    assert (step, node) == (1, columns["predicted"][0, 0]) and name.startswith("class ") and 0 <= same <= neighbours


def test_hard_negatives_come_from_checkpoints_alone() -> None:
    settings = {**SMALL, "mined": 1, "siblings": 1, "mine_every": 4}
    for every in (1, 2, 4):
        MinedRetrieval(RunFacts(seed=3, settings=settings, iterations=8, checkpoint_every=every))
    for every in (3, 8):
        with pytest.raises(
            ValueError, match=rf"mine_every: .* expected a multiple of checkpoints.every, {every} \(given: 4\)"
        ):
            MinedRetrieval(RunFacts(seed=3, settings=settings, iterations=8, checkpoint_every=every))
