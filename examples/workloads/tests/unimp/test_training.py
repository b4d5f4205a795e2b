"""Masked label prediction: what the network sees, and that it learns from it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from examples.workloads.tests.kge.support import alone, on_ranks
from examples.workloads.tests.unimp.support import BLOCKS, begun
from yatt_core.workloads.contract import Draw, Ranks, RunFacts
from yatt_workloads.unimp.model import UniMP
from yatt_workloads.unimp.node_graph import read_graph
from yatt_workloads.unimp.settings import NodeLabelSettings
from yatt_workloads.unimp.workload import NodeLabels

STILL = {"dropout": 0, "attention_dropout": 0}


def learnt(workload: NodeLabels, iterations: int) -> float:
    loss = math.nan
    for iteration in range(1, iterations + 1):
        draw = Draw(5, iteration, iteration - 1)
        loss = workload.update(workload.draw(draw), draw)["loss"]
    return loss


def test_neighbours_labels_are_worth_more_than_features(tmp_path: Path) -> None:
    """Features say nothing here; without labels, all that the network can do is to recognise neighbours by their noise."""
    graph = {"nodes": 300, "classes": 3, "within": 9, "across": 1, "signal": 0, "features": 1}
    found = {}
    for labels in (True, False):
        folder = tmp_path / str(labels)
        folder.mkdir()
        workload = begun(folder, {"generated": graph, "labels": labels, "steps": 40, "width": 16})
        learnt(workload, 1)
        found[labels] = workload.evaluate()
    assert found[True]["test/accuracy"] > 0.9 and found[False]["test/accuracy"] < 0.75
    assert found[True]["test/known_best"] >= found[True]["test/accuracy"] - 0.05
    assert found[True]["accuracy"] == found[True]["valid/accuracy"]


def test_what_is_predicted_is_not_seen(tmp_path: Path) -> None:
    """Another label of a hidden node changes nothing of what is predicted; one of a visible node does."""
    model = UniMP(NodeLabelSettings.model_validate({**BLOCKS, **STILL}), 3, 4).eval()
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    edges = torch.tensor([[0, 1, 2, 1], [1, 0, 1, 2]])
    visible = torch.tensor([True, False, True, True])
    labels = torch.tensor([0, 1, 2, 3])
    before = model(features, edges, labels, visible)
    assert torch.equal(model(features, edges, torch.tensor([0, 3, 2, 3]), visible), before)
    assert not torch.equal(model(features, edges, torch.tensor([1, 1, 2, 3]), visible)[1], before[1])
    workload = begun(tmp_path, {**BLOCKS, "hidden": 0.25})
    rows = workload.draw(Draw(5, 1, 0))["predicted"]
    train = read_graph(tmp_path).nodes("train")
    assert rows.shape == (2, round(0.25 * len(train))) and np.isin(rows, train).all()
    assert not np.array_equal(rows[0], rows[1]) and len(np.unique(rows[0])) == len(rows[0])


@pytest.mark.parametrize("sampling", [None, {"batch": 20, "part": 8, "neighbours": 3}])
def test_a_step_hides_the_labels_that_it_predicts_and_no_others(
    sampling: dict[str, int] | None, tmp_path: Path
) -> None:
    workload = begun(tmp_path, {**BLOCKS, "sampling": sampling})
    train = read_graph(tmp_path).nodes("train")
    draw = Draw(5, 1, 0)
    predicted = workload.draw(draw)["predicted"][0]
    parts = list(workload._parts(predicted, 0, draw))
    assert np.concatenate([part.nodes[part.own].numpy() for part in parts]).tolist() == predicted.tolist()
    for part in parts:
        seen = part.nodes[part.visible].numpy()
        assert set(seen.tolist()) == (set(train.tolist()) - set(predicted.tolist())) & set(part.nodes.tolist()) != set()


def test_layers_have_a_gate_between_input_and_neighbours() -> None:
    """With the gate shut to what is gathered, edges change nothing."""
    model = UniMP(NodeLabelSettings.model_validate({**BLOCKS, **STILL, "layers": 1}), 3, 4).eval()
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(4, dtype=torch.long)
    visible = torch.zeros(4, dtype=torch.bool)
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    fewer = torch.tensor([[0], [1]])
    assert not torch.equal(model(features, edges, labels, visible), model(features, fewer, labels, visible))
    with torch.no_grad():
        (layer,) = model.layers
        gate = layer.lin_beta.weight
        gate.zero_()
        layer.lin_skip.weight.zero_()
        layer.lin_skip.bias.fill_(1.0)
        gate[0, 8:16] = 100.0  # the gate reads what is gathered, the input, and their difference
    torch.testing.assert_close(model(features, edges, labels, visible), model(features, fewer, labels, visible))


def test_whole_neighbourhoods_give_the_gradient_of_the_whole_graph(tmp_path: Path) -> None:
    """All training nodes are predicted at once, without noise: parts of them or all together, sampled or not."""
    whole = begun(tmp_path, {**BLOCKS, **STILL, "labels": False, "steps": 1})
    expected = whole.update(whole.draw(Draw(5, 1, 0)), Draw(5, 1, 0))
    for part in (1000, 16):
        sampling = {"batch": 1000, "part": part, "neighbours": 1000}
        sampled = begun(tmp_path, {**BLOCKS, **STILL, "labels": False, "steps": 1, "sampling": sampling})
        found = sampled.update(sampled.draw(Draw(5, 1, 0)), Draw(5, 1, 0))
        assert found == pytest.approx(dict(expected), rel=1e-4)


@pytest.mark.parametrize("sampling", [None, {"batch": 40, "part": 8, "neighbours": 3}])
def test_two_ranks_learn_the_same(sampling: dict[str, int] | None, tmp_path: Path) -> None:
    """Sums in another order change last bits, and those only: a node keeps the same neighbours on each rank."""
    settings = {**BLOCKS, **STILL, "sampling": sampling}
    alone = learnt(begun(tmp_path, settings), 2)

    def rank(ranks: Ranks) -> float:
        return learnt(begun(tmp_path, settings, ranks), 2)

    first, second = on_ranks(2, rank)
    assert first == second == pytest.approx(alone, rel=1e-4)


def test_noise_is_a_function_of_the_draw_alone(tmp_path: Path) -> None:
    found = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        found.append(learnt(begun(tmp_path, BLOCKS), 2))
    assert found[0] == found[1]


def test_logits_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    workload = begun(tmp_path, BLOCKS)
    weights = workload.state().weights["classes.bias"]
    assert isinstance(weights, torch.Tensor)
    weights[0] = math.nan
    with pytest.raises(ValueError, match="the logits of 120 nodes are not finite"):
        workload.evaluate()


@pytest.mark.parametrize("name", ["folder", "generated", "labels", "width", "heads", "layers"])
def test_what_shapes_inputs_or_state_is_not_tunable(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^tunable.{name}: shapes the inputs or the state; expected it in settings$"):
        NodeLabels(RunFacts(seed=5, settings=BLOCKS, iterations=1, tunable=frozenset({name, "rate"})))
    NodeLabels(RunFacts(seed=5, settings=BLOCKS, iterations=1, tunable=frozenset({"rate"})))


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ({"nodes": 20, "classes": 20, "within": 1}, "generated: 9 of 20 classes have no node in the train split"),
        ({"nodes": 10, "classes": 2, "within": 1, "across": 1, "valid": 0.01}, "no node is in the valid split"),
        ({"signal": 1e39}, "generated: a feature is not finite as a number of 32 bits; expected a smaller signal"),
    ],
)
def test_a_graph_that_cannot_be_generated_is_refused_before_a_run_starts(graph: dict[str, float], said: str) -> None:
    workload = NodeLabels(RunFacts(seed=5, settings={"generated": graph}, iterations=1))
    with pytest.raises(ValueError, match=said):
        workload.check_inputs()


def test_a_seed_may_be_larger_than_64_bits(tmp_path: Path) -> None:
    workload = NodeLabels(RunFacts(seed=2**70, settings=BLOCKS, iterations=1))
    workload.build_inputs(tmp_path)
    workload.begin(tmp_path, alone())
    assert workload.evaluate()["accuracy"] >= 0


def test_settings_that_cannot_be_used() -> None:
    for settings, text in (
        ({}, "expected either folder or generated"),
        ({"folder": "a", "width": 9}, "width: expected a multiple of heads 2"),
        ({"generated": {"train": 0.9}}, "leave a test split"),
        ({"folder": "a", "hiding": 0.1}, "hiding"),
        ({"folder": "a", "hidden": 0.1, "sampling": {}}, "hidden: with sampling, a batch says which labels are hidden"),
        ({"folder": "a", "hidden": 0.1, "labels": False}, "hidden: .*without labels there are none"),
        ({"folder": "a", "steps": True}, "steps"),
        ({"folder": "a", "rate": "0.1"}, "rate"),
        ({"folder": "a", "rate": math.nan}, "rate"),
        (
            {"generated": {"nodes": 100, "classes": 5, "across": 90}},
            "across: expected at most the nodes of other classes, 80",
        ),
        ({"generated": {"nodes": 10**6}}, "nodes"),
    ):
        with pytest.raises(ValidationError, match=text):
            NodeLabelSettings.model_validate(settings)
