"""A run on a knowledge graph: trains the members of an ensemble side by side, and evaluates each and all together.

Consumes `workload.settings` as `KnowledgeGraphSettings`; implements `yatt_core.workloads.contract.Workload`. Each iteration draws
training triples and negatives for each member. `accuracy` is the filtered MRR on the validation split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from yatt_core.workloads.contract import Columns, Draw, Listing, Metrics, Ranks, Rows, RunFacts, SavedState, State
from yatt_workloads.graphs_adam import falling_share
from yatt_workloads.graphs_settings import require_cpu
from yatt_workloads.kge.in_words import by_k, by_relation, in_words
from yatt_workloads.kge.member import Member, StepFigures
from yatt_workloads.kge.ranking import Queries, TripleRanks, TrueAnswers, ranks_of
from yatt_workloads.kge.settings import WALKER, KnowledgeGraphSettings, MemberSettings
from yatt_workloads.kge.table import DividedRows
from yatt_workloads.kge.triples import (
    Triples,
    generated_triples,
    read_graph,
    read_triples,
    write_generated,
    write_graph_of,
)
from yatt_workloads.kge.walks import Neighbours, Statistics
from yatt_workloads.tunable import refuse_tunable

FIXED = frozenset({"folder", "generated", "members"})
"""Settings on which the inputs or the form of the state depend."""
RANKED_AT_ONCE = 256
UNIT = 2**40
"""What stands for 1 in sums of whole numbers: sums over up to 2^23 entities fit into 64 bits."""


class KnowledgeGraphEmbeddings:
    """Implements `Workload`."""

    ranks: ClassVar[Literal["one", "any"]] = "any"

    def __init__(self, facts: RunFacts) -> None:
        refuse_tunable(facts, FIXED, shaped="the inputs or the state")
        self._facts = facts
        self._settings = KnowledgeGraphSettings.model_validate(dict(facts.settings))

    def check_inputs(self) -> None:
        """Raises `ValueError` for triples that cannot be used, with file and line, and for a graph that cannot be generated."""
        if self._settings.generated is not None:
            generated_triples(self._settings.generated, self._facts.seed)
        if self._settings.folder is not None:
            read_triples(self._facts.path_of(self._settings.folder))

    def build_inputs(self, folder: Path) -> None:
        """Writes the graph. Raises `ValueError`, with file and line, for a triple that cannot be used."""
        if self._settings.generated is not None:
            write_generated(self._settings.generated, self._facts.seed, folder)
        if self._settings.folder is not None:
            write_graph_of(self._facts.path_of(self._settings.folder), folder)

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        """Begins with small random vectors, from the run's seed."""
        require_cpu(self._facts.device, ranks)
        self._ranks = ranks
        self._graph = read_graph(inputs)
        self._neighbours = Neighbours(self._graph.train, self._graph.entities)
        self._statistics = Statistics(self._graph.train, self._graph.entities, self._graph.relations)
        self._answers = TrueAnswers(self._graph.known, self._graph.relations)
        self._members = [
            Member(number=number, settings=settings, graph=self._graph, ranks=ranks, seed=self._facts.seed)
            for number, settings in enumerate(self._settings.members)
        ]
        self._steps = 0

    @property
    def _triples(self) -> int:
        """How many triples an iteration draws."""
        return min(self._settings.triples or len(self._graph.train), len(self._graph.train))

    def draw(self, draw: Draw) -> Columns:
        """Draws, for each member, triples or pairs of random walks, and negatives: any entities."""
        columns: dict[str, np.ndarray] = {}
        for number, settings in enumerate(self._settings.members):
            noise = draw.generator("triples", number)
            columns[f"{number}.positives"] = self._positives(settings, noise)
            shape = (self._triples, self._settings.negatives)
            columns[f"{number}.negatives"] = noise.integers(self._graph.entities, size=shape, dtype=np.int32)
        return columns

    def _positives(self, settings: MemberSettings, noise: np.random.Generator) -> Triples:
        """Returns triples, [triples, 3]; a pair of a walk has relation 0, which its model does not look at."""
        if settings.model == WALKER:
            pairs = self._neighbours.pairs(self._triples, self._settings.hops, noise)
            return np.stack([pairs[:, 0], np.zeros(len(pairs), np.int64), pairs[:, 1]], axis=1)
        return self._graph.train[noise.permutation(len(self._graph.train))[: self._triples]]

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        """Takes one step a batch with each member; tails and heads are asked for in turn."""
        figures: list[StepFigures] = []
        batch = self._settings.batch
        for first in range(0, self._triples, batch):
            rate = self._rate()
            for member in self._members:
                positives = columns[f"{member.number}.positives"][first : first + batch]
                negatives = torch.from_numpy(columns[f"{member.number}.negatives"][first : first + batch]).long()
                queries = Queries.of(positives, inverse=self._steps % 2 == 1)
                figures.append(member.learn(queries, negatives, rate * member.settings.rate))
            self._steps += 1
        return {
            "loss": sum(figure.loss for figure in figures) / len(figures),
            "grad_norm": (sum(figure.square for figure in figures) / len(figures)) ** 0.5,
            "rate": rate,
        }

    def _rate(self) -> float:
        """Returns the share of the learning rate of the next step."""
        total = self._facts.iterations * -(-self._triples // self._settings.batch)
        return falling_share(self._steps, total)

    def evaluate(self) -> Metrics:
        """Returns filtered MRR and Hits@k of the ensemble on both held-out splits, and the MRR of each member.

        Raises `ValueError` for scores that are not finite.
        """
        tables = [member.settled() for member in self._members]
        metrics: dict[str, float] = {}
        self._found: dict[str, TripleRanks] = {}
        for split, triples in (("valid", self._graph.valid), ("test", self._graph.test)):
            together, alone = self._ranked(triples, tables)
            self._found[split] = together
            metrics |= {f"{split}/{name}": value for name, value in together.metrics().items()}
            if len(self._members) > 1:
                for member, found in zip(self._members, alone, strict=True):
                    metrics[f"{split}/mrr_{member.name}"] = found.metrics()["mrr"]
        return {"accuracy": metrics["valid/mrr"], **metrics}

    def tables(self) -> Mapping[str, Listing]:
        """Returns Hits@k by k, and MRR and Hits@10 of the validation split by relation."""
        return {
            "hits_by_k": by_k(self._found, self._graph.entities),
            "hits_by_relation": by_relation(self._found["valid"], self._graph),
        }

    def shown(self, columns: Columns) -> Listing:
        """Returns the first triples of each member by their names."""
        members = [(member.name, member.settings.model != WALKER) for member in self._members]
        return in_words(columns, self._graph, members)

    def _ranked(self, triples: Triples, tables: list[DividedRows]) -> tuple[TripleRanks, list[TripleRanks]]:
        """Returns the ranks of the ensemble, and of each member."""
        together: list[TripleRanks] = []
        alone: list[list[TripleRanks]] = [[] for _ in self._members]
        for queries in self._parts(triples):
            scores = [member.scores(table, queries) for member, table in zip(self._members, tables, strict=True)]
            self._require_finite(scores)
            for found, score in zip(alone, scores, strict=True):
                found.append(self._ranks_of(score, queries))
            together.append(self._ranks_of(self._mixed(scores, queries), queries))
        return TripleRanks.together(together), [TripleRanks.together(found) for found in alone]

    def _parts(self, triples: Triples) -> Iterator[Queries]:
        for inverse in (False, True):
            yield from Queries.of(triples, inverse).split(RANKED_AT_ONCE)

    def _ranks_of(self, scores: torch.Tensor, queries: Queries) -> TripleRanks:
        span = self._ranks.share(self._graph.entities)
        return ranks_of(scores=scores, span=span, queries=queries, answers=self._answers, ranks=self._ranks)

    def _require_finite(self, scores: list[torch.Tensor]) -> None:
        broken = [(~score.isfinite()).sum() for score in scores]
        for member, count in zip(self._members, self._ranks.sum(torch.stack(broken)).tolist(), strict=True):
            if count:
                raise ValueError(
                    f"member {member.name}: {count} scores of held-out triples are not finite, so that they have no rank; "
                    "expected finite vectors: try a lower rate"
                )

    def _mixed(self, scores: list[torch.Tensor], queries: Queries) -> torch.Tensor:
        """Returns the ensemble's scores: the weighted sum of each member's softmax over all entities, and of the statistics."""
        if len(scores) == 1 and not self._settings.statistics:
            return scores[0]
        mixed = torch.zeros_like(scores[0])
        for member, score in zip(self._members, scores, strict=True):
            mixed += member.settings.weight * (score - self._logsumexp(score)).exp()
        span = self._ranks.share(self._graph.entities)
        for walk, weight in self._settings.statistics.items():
            mixed += weight * self._statistics.of(walk, queries)[:, span.start : span.stop]
        return mixed

    def _logsumexp(self, scores: torch.Tensor) -> torch.Tensor:
        """Returns the logarithm of the sum over the entities of all ranks, [queries, 1].

        What is summed is rounded to whole numbers first, so that the sum does not depend on how entities are divided over ranks.
        """
        best = scores.amax(1) if scores.shape[1] else scores.new_full((len(scores),), -torch.inf)
        parts = self._ranks.gathered({"best": best.numpy()})
        highest = torch.from_numpy(np.stack([part["best"] for part in parts]).max(axis=0))
        shares = ((scores - highest[:, None]).exp() * UNIT).round().long().sum(1)
        return (highest + (self._ranks.sum(shares).double() / UNIT).log())[:, None]

    def state(self) -> State:
        """Returns the members' vectors and moments, and the number of steps."""
        weights: dict[str, torch.Tensor | Rows] = {}
        others: dict[str, torch.Tensor | Rows] = {}
        for member in self._members:
            weights |= member.weights
            others |= member.moments
        return State(weights=weights, others=others, facts={"steps": self._steps})

    def load(self, saved: SavedState) -> None:
        """Takes over what `state` has returned."""
        self._steps = int(saved.facts["steps"])
        for member in self._members:
            member.load(saved, self._steps)
