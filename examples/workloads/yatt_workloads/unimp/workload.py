"""A run that learns the classes of a graph's nodes by masked label prediction.

Consumes `workload.settings` as `NodeLabelSettings`; implements `yatt_core.workloads.contract.Workload`. A step hides the
labels of some training nodes and predicts them from features and all other training labels; it sees the whole graph, or sampled
neighbourhoods. `accuracy` is that of the validation nodes, with the labels of all training nodes visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy

from yatt_core.workloads.contract import Columns, Draw, Listing, Metrics, Ranks, RunFacts, SavedState, State
from yatt_workloads.graphs_adam import Adam, falling_share
from yatt_workloads.graphs_settings import require_cpu
from yatt_workloads.initial_noise import initial_noise
from yatt_workloads.tunable import refuse_tunable
from yatt_workloads.unimp.in_words import NO_NODE, PREDICTED, by_class, in_words
from yatt_workloads.unimp.model import UniMP
from yatt_workloads.unimp.neighbourhood import NeighbourSampler
from yatt_workloads.unimp.node_graph import (
    SPLITS,
    generated_nodes,
    read_arrays,
    read_graph,
    write_generated,
    write_graph_of,
)
from yatt_workloads.unimp.settings import NodeLabelSettings

FIXED = frozenset({"folder", "generated", "labels", "width", "heads", "layers"})
"""Settings on which the inputs or the form of the state depend."""


@dataclass(frozen=True, eq=False)
class Part:
    """What is computed together.

    nodes: all of it, [nodes]; edges: [2, edges], as places in `nodes`.
    visible: of which nodes labels are seen, [nodes].
    own: places of the nodes that this rank predicts.
    number: of the part in its step, for its noise.
    """

    nodes: torch.Tensor
    edges: torch.Tensor
    visible: torch.Tensor
    own: torch.Tensor
    number: int


class NodeLabels:
    """Implements `Workload`."""

    ranks: ClassVar[Literal["one", "any"]] = "any"

    def __init__(self, facts: RunFacts) -> None:
        refuse_tunable(facts, FIXED, shaped="the inputs or the state")
        self._facts = facts
        self._settings = NodeLabelSettings.model_validate(dict(facts.settings))

    def check_inputs(self) -> None:
        """Raises `ValueError` for arrays that cannot be used, with file and node, and for a graph that cannot be generated."""
        if self._settings.generated is not None:
            generated_nodes(self._settings.generated, self._facts.seed)
        if self._settings.folder is not None:
            read_arrays(self._facts.path_of(self._settings.folder))

    def build_inputs(self, folder: Path) -> None:
        """Writes the graph. Raises `ValueError` for one that cannot be used."""
        if self._settings.generated is not None:
            write_generated(self._settings.generated, self._facts.seed, folder)
        if self._settings.folder is not None:
            write_graph_of(self._facts.path_of(self._settings.folder), folder)

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        """Begins with random weights, from the run's seed."""
        require_cpu(self._facts.device, ranks)
        self._ranks = ranks
        self._graph = read_graph(inputs)
        self._train = self._graph.nodes(SPLITS[0])
        self._features = torch.from_numpy(self._graph.features)
        self._labels = torch.from_numpy(self._graph.labels)
        self._edges = torch.from_numpy(np.stack([self._graph.sources, self._graph.targets]))
        self._shown = torch.from_numpy(self._graph.splits == 0)
        self._sampler = NeighbourSampler(self._graph.sources, self._graph.targets, len(self._features))
        self._model = UniMP(self._settings, self._features.shape[1], self._graph.classes)
        self._model.begin(initial_noise(self._facts.seed, "weights"))
        self._adam = Adam({name: each.detach() for name, each in self._model.named_parameters()}, self._settings.decay)

    def draw(self, draw: Draw) -> Columns:
        """Draws, for each step, the training nodes whose labels are predicted, [steps, nodes], with -1 behind them."""
        noise = draw.generator(PREDICTED)
        rows = list(self._batches(noise) if self._settings.sampling else self._hidden(noise))
        longest = max(len(row) for row in rows)
        return {PREDICTED: np.stack([np.pad(row, (0, longest - len(row)), constant_values=NO_NODE) for row in rows])}

    def _hidden(self, noise: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
        for _ in range(self._settings.steps):
            count = (
                max(1, round(self._settings.hidden * len(self._train))) if self._settings.labels else len(self._train)
            )
            yield noise.permutation(self._train)[:count]

    def _batches(self, noise: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
        """Yields batches of the training nodes, in a new order after each round."""
        assert self._settings.sampling is not None
        batch = min(self._settings.sampling.batch, len(self._train))
        order = noise.permutation(self._train)
        for _ in range(self._settings.steps):
            if len(order) < batch:
                order = noise.permutation(self._train)
            yield order[:batch]
            order = order[batch:]

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        """Takes the steps of an iteration, each on the mean loss of the nodes that are predicted."""
        losses: list[float] = []
        squares: list[float] = []
        self._model.train()
        for step, row in enumerate(columns[PREDICTED]):
            predicted = row[row != NO_NODE]
            self._model.zero_grad(set_to_none=True)
            loss = torch.zeros(())
            for part in self._parts(predicted, step, draw):
                loss += self._learn(part, len(predicted), draw.seed_of("dropout", step, part.number))
            gradients = {
                name: self._ranks.sum(torch.zeros_like(each) if each.grad is None else each.grad)
                for name, each in self._model.named_parameters()
            }
            squares.append(float(torch.stack([each.square().sum() for each in gradients.values()]).sum()))
            losses.append(float(self._ranks.sum(loss)))
            self._adam.step(gradients, self._rate() * self._settings.rate)
        return {"loss": sum(losses) / len(losses), "grad_norm": (sum(squares) / len(squares)) ** 0.5}

    def _rate(self) -> float:
        """Returns the share of the learning rate of the next step."""
        return falling_share(self._adam.steps, self._facts.iterations * self._settings.steps)

    def _parts(self, predicted: npt.NDArray[np.int64], step: int, draw: Draw) -> Iterator[Part]:
        """Yields this rank's parts of a step. What a part's noise is does not depend on the number of ranks."""
        visible = self._shown.clone()
        visible[predicted] = False
        sampling = self._settings.sampling
        if sampling is None:
            own = self._ranks.share(len(predicted))
            places = torch.from_numpy(predicted[own.start : own.stop])
            yield Part(nodes=torch.arange(len(visible)), edges=self._edges, visible=visible, own=places, number=0)
            return
        parts = range(0, len(predicted), sampling.part)
        for number in self._ranks.share(len(parts)):
            chosen = predicted[parts[number] : parts[number] + sampling.part]
            seed = draw.seed_of("neighbours", step)
            around = self._sampler.around(chosen, hops=self._settings.layers, most=sampling.neighbours, seed=seed)
            nodes = torch.from_numpy(around.nodes)
            edges = torch.from_numpy(np.stack([around.sources, around.targets]))
            yield Part(nodes=nodes, edges=edges, visible=visible[nodes], own=torch.arange(len(chosen)), number=number)

    def _learn(self, part: Part, count: int, seed: int) -> torch.Tensor:
        """Adds a part's gradients; returns its share of the loss of `count` nodes."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            logits = self._model(self._features[part.nodes], part.edges, self._labels[part.nodes], part.visible)
        wanted = self._labels[part.nodes[part.own]]
        loss = cross_entropy(logits[part.own], wanted, reduction="sum") / count
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def evaluate(self) -> Metrics:
        """Returns the accuracy on both held-out splits, and the best that is known to be possible on the test split.

        Raises `ValueError` for logits that are not finite.
        """
        self._model.eval()
        with torch.no_grad():
            logits = self._model(self._features, self._edges, self._labels, self._shown)
        broken = int((~logits.isfinite()).any(1).sum())
        if broken:
            raise ValueError(
                f"the logits of {broken} nodes are not finite, so that they have no class; try a lower rate"
            )
        right = (logits.argmax(1) == self._labels).numpy()
        self._right = right
        found: dict[str, Any] = {
            f"{split}/accuracy": float(right[self._graph.nodes(split)].mean()) for split in SPLITS[1:]
        }
        if self._graph.known_best is not None:
            found["test/known_best"] = self._graph.known_best
        return {"accuracy": found["valid/accuracy"], **found}

    def tables(self) -> Mapping[str, Listing]:
        """Returns the accuracy on both held-out splits by class."""
        return {"accuracy_by_class": by_class(self._right, self._graph)}

    def shown(self, columns: Columns) -> Listing:
        """Returns the first nodes that each step predicts, with their classes and neighbours."""
        return in_words(columns, self._graph)

    def state(self) -> State:
        """Returns weights, moments, and the number of steps."""
        return State(weights=self._adam.tensors, others=self._adam.moments, facts={"steps": self._adam.steps})

    def load(self, saved: SavedState) -> None:
        """Takes over what `state` has returned."""
        for source, tensors in ((saved.weights, self._adam.tensors), (saved.others, self._adam.moments)):
            for name, tensor in tensors.items():
                tensor.copy_(source.whole(name))
        self._adam.steps = int(saved.facts["steps"])
