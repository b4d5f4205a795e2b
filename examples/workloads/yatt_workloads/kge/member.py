"""A member of the ensemble: its vectors, its steps, and its scores of all entities.

Consumes positive pairs with negatives; learns by self-adversarial negative sampling (arXiv 1902.10197). Entities' vectors are
divided over the ranks, the parameters of relations are on each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

from yatt_core.workloads.contract import Ranks, Rows, SavedState
from yatt_workloads.graphs_adam import Adam
from yatt_workloads.initial_noise import initial_noise, initial_seed
from yatt_workloads.kge.models import make_model
from yatt_workloads.kge.ranking import Queries
from yatt_workloads.kge.settings import MemberSettings
from yatt_workloads.kge.table import DividedRows, initial_rows
from yatt_workloads.kge.triples import KnowledgeGraph

ENTITIES = "entities"
EVALUATED_AT_ONCE = 1_024
"""Candidates that a query is compared with at once, so that memory does not grow with the graph."""
SMOOTHED_AT_ONCE = 65_536


@dataclass(frozen=True)
class StepFigures:
    """What a step says. loss: the mean of the batch. square: of the gradient's norm."""

    loss: float
    square: float


class Member:
    """One model, on one rank.

    number: its place in the ensemble, which decides its noise.
    """

    def __init__(self, number: int, settings: MemberSettings, graph: KnowledgeGraph, ranks: Ranks, seed: int) -> None:
        self.number = number
        self.name = f"{number}.{settings.model}"
        self.settings = settings
        self._ranks = ranks
        self._graph = graph
        self._model = make_model(settings)
        span = ranks.share(graph.entities)
        rows = initial_rows(span, settings.width, self._model.span, initial_seed(seed, ENTITIES, number))
        self._entities = DividedRows(ranks, rows, graph.entities)
        self._relations = self._model.begin(graph.relations, initial_noise(seed, "relations", number))
        self._adam = Adam({ENTITIES: rows, **self._relations})

    @property
    def weights(self) -> dict[str, torch.Tensor | Rows]:
        """What a version's digest is computed from."""
        return {f"{self.name}.{name}": self._held(name, tensor) for name, tensor in self._adam.tensors.items()}

    @property
    def moments(self) -> dict[str, torch.Tensor | Rows]:
        """The optimizer's moments."""
        return {f"{self.name}.{name}": self._held(name, tensor) for name, tensor in self._adam.moments.items()}

    def _held(self, name: str, tensor: torch.Tensor) -> torch.Tensor | Rows:
        if name.split(".")[-1] == ENTITIES:
            return Rows(tensor, self._entities.span.start, self._entities.total)
        return tensor

    def load(self, saved: SavedState, steps: int) -> None:
        """Takes over weights and moments of a checkpoint, whichever number of ranks has saved it."""
        span = self._entities.span
        for source, tensors in ((saved.weights, self._adam.tensors), (saved.others, self._adam.moments)):
            for name, tensor in tensors.items():
                whole = f"{self.name}.{name}"
                if name.split(".")[-1] == ENTITIES:
                    tensor.copy_(source.rows(whole, span.start, span.stop))
                else:
                    tensor.copy_(source.whole(whole))
        self._adam.steps = steps

    # -- learning -----------------------------------------------------------------------------------------------------

    def learn(self, queries: Queries, negatives: torch.Tensor, rate: float) -> StepFigures:
        """Takes one step on queries and their negatives, [queries, negatives]; each rank learns from its share of them."""
        candidates = torch.cat([queries.wanted[:, None], negatives], 1)
        numbers, places = torch.unique(torch.cat([queries.known, candidates.flatten()]), return_inverse=True)
        vectors = self._entities.fetch(numbers).requires_grad_()
        relations = {name: tensor.detach().requires_grad_() for name, tensor in self._relations.items()}
        count = len(queries.known)
        own = self._ranks.share(count)
        share = slice(own.start, own.stop)
        known = vectors[places[:count]][share]
        others = vectors[places[count:].view(candidates.shape)[share]]
        query = self._model.query(relations, known, queries.relation[share], queries.inverse)
        scores = self._model.score(query, others)
        hardness = (self.settings.temperature * scores[:, 1:]).detach().softmax(1)
        losses = -logsigmoid(scores[:, 0]) - (hardness * logsigmoid(-scores[:, 1:])).sum(1)
        loss = losses.sum() / count
        loss.backward()  # type: ignore[no-untyped-call]
        found = {name: self._ranks.sum(_gradient(tensor)) for name, tensor in {ENTITIES: vectors, **relations}.items()}
        square = sum(float(gradient.square().sum()) for gradient in found.values())
        found[ENTITIES] = self._entities.own_part(numbers, found[ENTITIES])
        self._adam.step(found, rate)
        return StepFigures(float(self._ranks.sum(loss.detach().clone())), square)

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def settled(self) -> DividedRows:
        """Returns the entities as they are evaluated: smoothed, if the settings say so.

        Each rank asks for where all triples expect their ends, and keeps what concerns its own entities: in this way, and with
        operations that are rounded once each, the bits do not depend on the number of ranks.
        """
        if not self.settings.smoothing:
            return self._entities
        span = self._entities.span
        expected = torch.zeros_like(self._entities.values)
        counts = torch.zeros(len(span), 1)
        for inverse in (False, True):
            for part in Queries.of(self._graph.train, inverse).split(SMOOTHED_AT_ONCE):
                numbers, places = torch.unique(part.known, return_inverse=True)
                known = self._entities.fetch(numbers)[places]
                own = (part.wanted >= span.start) & (part.wanted < span.stop)
                queries = self._model.query(self._relations, known, part.relation, inverse)
                rows = part.wanted[own] - span.start
                expected.index_add_(0, rows, queries[own])
                counts.index_add_(0, rows, torch.ones(len(rows), 1))
        mean = expected / counts.clamp(min=1)
        moved = self._entities.values + self.settings.smoothing * (mean - self._entities.values)
        smoothed = torch.where(counts > 0, moved, self._entities.values)
        return DividedRows(self._ranks, smoothed, self._entities.total)

    def scores(self, entities: DividedRows, queries: Queries) -> torch.Tensor:
        """Returns the scores of this rank's entities, [queries, own entities], as 64-bit floating-point numbers.

        entities: what `settled` has returned.
        """
        with torch.no_grad():
            query = self._model.query(self._relations, entities.fetch(queries.known), queries.relation, queries.inverse)
            parts = [self._model.score(query, part[None]) for part in torch.split(entities.values, EVALUATED_AT_ONCE)]
            return torch.cat(parts, 1).double() if parts else torch.zeros(len(query), 0, dtype=torch.float64)


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
