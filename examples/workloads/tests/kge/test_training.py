"""Learning on a graph with a known best: steps, the ensemble, smoothing, and vectors divided over ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from benchmarks.workloads.alone import kept
from examples.workloads.tests.kge.support import RING, alone, begun, learnt, on_ranks
from yatt_core.workloads.contract import Draw, Ranks, Rows, RunFacts
from yatt_workloads.kge.member import Member
from yatt_workloads.kge.ranking import Queries
from yatt_workloads.kge.settings import KnowledgeGraphSettings, MemberSettings
from yatt_workloads.kge.triples import read_graph
from yatt_workloads.kge.walks import Statistics
from yatt_workloads.kge.workload import KnowledgeGraphEmbeddings

MIXED = {
    **RING,
    "members": [
        {"model": "note", "width": 8, "smoothing": 0.2},
        {"model": "rotate", "width": 8, "weight": 0.5},
        {"model": "deepwalk", "width": 8},
    ],
    "statistics": {"ht": 0.1, "rhrt": 0.05},
}


def test_a_ring_is_learnt_nearly_to_its_best(tmp_path: Path) -> None:
    graph = {"entities": 24, "relations": 14}
    members = [{"model": "rotate", "width": 16, "rate": 0.05}]
    settings = {"generated": graph, "members": members, "batch": 64, "negatives": 8}
    workload = begun(tmp_path, alone(), settings, iterations=60)
    before = workload.evaluate()
    learnt(workload, 60)
    after = workload.evaluate()
    assert before["test/mrr"] < 0.3 and after["test/mrr"] > 0.9 and after["accuracy"] == after["valid/mrr"]
    assert after["test/mrr_pessimistic"] <= after["test/mrr"] <= after["test/mrr_optimistic"]


def test_hard_negatives_weigh_more(tmp_path: Path) -> None:
    """The loss of one triple, told by hand from its scores."""
    begun(tmp_path, alone(), RING)
    graph = read_graph(tmp_path)
    settings = MemberSettings(model="transe", width=8, temperature=2)
    member = Member(number=0, settings=settings, graph=graph, ranks=alone(), seed=1)
    queries = Queries.of(graph.train[:1], inverse=False)
    negatives = torch.tensor([[3, 7]])
    scores = member.scores(member.settled(), queries)[0].float()
    wrong = scores[negatives[0]]
    hardness = (2 * wrong).softmax(0)
    expected = (
        torch.nn.functional.softplus(-scores[queries.wanted[0]])
        + (hardness * torch.nn.functional.softplus(wrong)).sum()
    )
    assert member.learn(queries, negatives, 0.01).loss == pytest.approx(float(expected), rel=1e-5)


def test_smoothing_moves_entities_to_where_their_triples_expect_them(tmp_path: Path) -> None:
    begun(tmp_path, alone(), RING)
    graph = read_graph(tmp_path)
    members = [
        Member(
            number=0,
            settings=MemberSettings(model="transe", width=8, smoothing=smoothing),
            graph=graph,
            ranks=alone(),
            seed=1,
        )
        for smoothing in (0.0, 0.25)
    ]
    vectors, smoothed = (member.settled().values for member in members)
    moves = members[0].weights["0.transe.move"]
    assert isinstance(moves, torch.Tensor)
    expected = [vectors[h] + moves[r] for h, r, t in graph.train if t == 5]
    expected += [vectors[t] - moves[r] for h, r, t in graph.train if h == 5]
    torch.testing.assert_close(smoothed[5], 0.75 * vectors[5] + 0.25 * torch.stack(expected).mean(0))


def test_two_ranks_find_the_same_gradient_and_each_keeps_its_rows(tmp_path: Path) -> None:
    """Sums in another order change last bits, and those only."""
    settings = {**MIXED, "batch": 1000}
    mean = "0.note.mean.entities"

    def learn(ranks: Ranks) -> tuple[dict[str, float], Rows, dict[str, float]]:
        workload = begun(tmp_path, ranks, settings)
        before = dict(workload.evaluate())
        draw = Draw(5, 1, 0)
        metrics = dict(workload.update(workload.draw(draw), draw))
        rows = workload.state().others[mean]
        assert isinstance(rows, Rows)
        return metrics, rows, before

    metrics, whole, before = learn(alone())
    (metrics_0, rows_0, before_0), (metrics_1, rows_1, before_1) = on_ranks(2, learn)
    assert metrics_0 == metrics_1 == pytest.approx(metrics, rel=1e-5)
    assert before_0 == before_1 == before, "ranks of triples are the same"
    assert (rows_0.start, rows_1.start, rows_0.total) == (0, 6, 12)
    torch.testing.assert_close(torch.cat([rows_0.values, rows_1.values]), whole.values)


def test_any_number_of_ranks_has_the_same_figures(tmp_path: Path) -> None:
    """Bit for bit, for every model: sums over all entities are exact, and what is smoothed is computed alike."""
    kinds = ("transe", "rotate", "quate", "ote", "note")
    members = [
        {"model": kind, "width": 12 if kind == "transe" else 8, "smoothing": 0.3, "rate": 0.05} for kind in kinds
    ]
    settings = {**MIXED, "generated": {"entities": 23, "relations": 9}, "members": [*members, MIXED["members"][2]]}
    alone_first = begun(tmp_path, alone(), settings)
    learnt(alone_first, 3)
    state = kept(alone_first.state())
    expected = dict(alone_first.evaluate())

    def evaluate(ranks: Ranks) -> tuple[dict[str, float], Any]:
        workload = begun(tmp_path, ranks, settings)
        workload.load(state)
        queries = Queries.of(read_graph(tmp_path).valid, inverse=True)
        tables = [member.settled() for member in workload._members]
        scores = [member.scores(table, queries) for member, table in zip(workload._members, tables, strict=True)]
        mixed = workload._mixed(scores, queries)
        return dict(workload.evaluate()), np.concatenate(
            [part["mixed"] for part in ranks.gathered({"mixed": mixed.T.numpy()})]
        )

    (_, scores) = evaluate(alone())
    for count in (2, 3):
        for figures, divided in on_ranks(count, evaluate):
            assert figures == expected
            assert np.array_equal(divided, scores), "the scores themselves are equal, not only their order"


def test_the_last_batch_may_have_fewer_triples_than_there_are_ranks(tmp_path: Path) -> None:
    settings = {**RING, "triples": 17, "members": [{"model": "note", "width": 8}, {"model": "deepwalk", "width": 8}]}
    expected = learnt(begun(tmp_path, alone(), settings), 2)
    for found in on_ranks(2, lambda ranks: learnt(begun(tmp_path, ranks, settings), 2)):
        assert found == pytest.approx(dict(expected), rel=1e-5)


def test_each_member_and_the_ensemble_are_evaluated(tmp_path: Path) -> None:
    workload = begun(tmp_path, alone(), MIXED)
    metrics = workload.evaluate()
    assert {name for name in metrics if name.startswith("test/mrr_")} == {
        "test/mrr_optimistic", "test/mrr_pessimistic", "test/mrr_0.note", "test/mrr_1.rotate", "test/mrr_2.deepwalk",
    }  # fmt: skip
    one = {**MIXED, "members": MIXED["members"][:1], "statistics": {}}
    assert begun(tmp_path, alone(), one).evaluate()["test/mrr"] == metrics["test/mrr_0.note"]
    told = begun(tmp_path, alone(), {**one, "statistics": {"ht": 1e6}}).evaluate()["test/mrr"]
    assert told != metrics["test/mrr_0.note"], "the statistics decide"


def test_the_ensemble_adds_probabilities_by_weight_and_statistics(tmp_path: Path) -> None:
    workload = begun(tmp_path, alone(), MIXED)
    graph = read_graph(tmp_path)
    for inverse in (False, True):
        queries = Queries.of(graph.test, inverse)
        scores = [member.scores(member.settled(), queries) for member in workload._members]
        weights = (1.0, 0.5, 1.0)
        expected = sum(weight * score.softmax(1) for weight, score in zip(weights, scores, strict=True))
        statistics = Statistics(graph.train, graph.entities, graph.relations)
        expected = expected + 0.1 * statistics.of("ht", queries) + 0.05 * statistics.of("rhrt", queries)
        torch.testing.assert_close(workload._mixed(scores, queries), expected, rtol=1e-9, atol=1e-11)


def test_scores_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    workload = begun(tmp_path, alone(), MIXED)
    weights = workload.state().weights["1.rotate.angle"]
    assert isinstance(weights, torch.Tensor)
    weights[0] = math.nan
    with pytest.raises(ValueError, match=r"member 1.rotate: \d+ scores of held-out triples are not finite"):
        workload.evaluate()


def test_no_two_members_or_seeds_share_their_noise(tmp_path: Path) -> None:
    begun(tmp_path, alone(), RING)
    graph = read_graph(tmp_path)
    settings = MemberSettings(model="note", width=8)
    found = []
    for seed in (1, 2, 2**70):
        for number in (0, 1):
            member = Member(number=number, settings=settings, graph=graph, ranks=alone(), seed=seed)
            found += [member.weights[f"{number}.note.{name}"] for name in ("matrix", "entities")]
    firsts = [float((each.values if isinstance(each, Rows) else each).flatten()[0]) for each in found]
    assert len(set(firsts)) == len(firsts) == 12


@pytest.mark.parametrize("name", ["folder", "generated", "members"])
def test_what_shapes_inputs_or_state_is_not_tunable(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^tunable.{name}: shapes the inputs or the state; expected it in settings$"):
        KnowledgeGraphEmbeddings(RunFacts(seed=5, settings=RING, iterations=1, tunable=frozenset({name, "batch"})))
    KnowledgeGraphEmbeddings(RunFacts(seed=5, settings=RING, iterations=1, tunable=frozenset({"batch"})))


def test_hops_of_an_ensemble_without_walks_are_refused() -> None:
    walker = {"model": "deepwalk"}
    KnowledgeGraphSettings.model_validate({**RING, "hops": 3, "members": [{"model": "ote"}, walker]})
    with pytest.raises(ValidationError, match="hops: no member is deepwalk, which walks; leave it out"):
        KnowledgeGraphSettings.model_validate({**RING, "hops": 3})


def test_a_graph_that_cannot_be_generated_is_refused_before_a_run_starts() -> None:
    settings = {"generated": {"entities": 60, "relations": 1, "held_out": 0.45}}
    with pytest.raises(ValueError, match="generated: a name is left without a training triple"):
        KnowledgeGraphEmbeddings(RunFacts(seed=1, settings=settings, iterations=1)).check_inputs()


def test_several_ranks_on_accelerators_are_refused(tmp_path: Path) -> None:
    begun(tmp_path, alone(), RING)
    workload = KnowledgeGraphEmbeddings(RunFacts(seed=5, settings=RING, iterations=1, device="cuda:0"))
    workload.begin(tmp_path, alone())

    def refused(ranks: Ranks) -> bool:
        with pytest.raises(ValueError, match="expected one rank, not 2"):
            workload.begin(tmp_path, ranks)
        return True

    assert on_ranks(2, refused) == [True, True]


def test_an_iteration_may_draw_a_part_of_the_triples(tmp_path: Path) -> None:
    workload = begun(tmp_path, alone(), {**RING, "triples": 20})
    columns = workload.draw(Draw(5, 1, 0))
    assert columns["0.positives"].shape == (20, 3) and columns["0.negatives"].shape == (20, 4)
    assert len({tuple(row) for row in columns["0.positives"].tolist()}) == 20
