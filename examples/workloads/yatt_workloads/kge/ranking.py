"""Filtered ranks of held-out triples, and what is read from them: mean reciprocal rank and Hits@k.

A rank is among all entities but the other true answers. With ties it is optimistic (before all equal ones), pessimistic (behind
them) or realistic (their mean). A score that is not finite is never a good one: as the true answer's it is last, and as another's
it stands before the true answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.workloads.contract import Ranks
from yatt_workloads.kge.triples import Triples

Float = npt.NDArray[np.float64]
HITS = (1, 3, 10)


@dataclass(frozen=True, eq=False)
class Queries:
    """Triples of which one end is wanted.

    inverse: whether the head is wanted, rather than the tail.
    known, relation, wanted: numbers, [queries].
    """

    inverse: bool
    known: torch.Tensor
    relation: torch.Tensor
    wanted: torch.Tensor

    @classmethod
    def of(cls, triples: Triples, inverse: bool) -> Queries:
        """Returns the queries of triples, [triples, 3]."""
        head, relation, tail = torch.from_numpy(triples).unbind(1)
        return cls(inverse, tail, relation, head) if inverse else cls(inverse, head, relation, tail)

    def split(self, size: int) -> Iterable[Queries]:
        """Yields parts of at most `size` queries."""
        for first in range(0, len(self.known), size):
            part = slice(first, first + size)
            yield Queries(self.inverse, self.known[part], self.relation[part], self.wanted[part])


class TrueAnswers:
    """The true answers to queries of both kinds."""

    def __init__(self, known: Triples, relations: int) -> None:
        self._relations = relations
        self._sorted = {inverse: self._index(known, inverse) for inverse in (False, True)}

    def _index(self, triples: Triples, inverse: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        given = triples[:, 2 if inverse else 0] * self._relations + triples[:, 1]
        order = np.argsort(given, kind="stable")
        return given[order], triples[order, 0 if inverse else 2]

    def to(self, queries: Queries) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns pairs of a query's place and a true answer to it, as two tensors, [pairs]."""
        keys, answers = self._sorted[queries.inverse]
        asked = (queries.known * self._relations + queries.relation).numpy()
        first = np.searchsorted(keys, asked, side="left")
        count = np.searchsorted(keys, asked, side="right") - first
        places = np.repeat(np.arange(len(asked)), count)
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return torch.from_numpy(places), torch.from_numpy(answers[np.repeat(first, count) + within])


@dataclass(frozen=True, eq=False)
class TripleRanks:
    """Ranks by their kind, from 1, [queries]."""

    optimistic: Float
    realistic: Float
    pessimistic: Float

    @classmethod
    def together(cls, parts: Iterable[TripleRanks]) -> TripleRanks:
        """Returns the ranks of several parts as one."""
        found = list(parts)
        return cls(
            optimistic=np.concatenate([part.optimistic for part in found]),
            realistic=np.concatenate([part.realistic for part in found]),
            pessimistic=np.concatenate([part.pessimistic for part in found]),
        )

    def metrics(self) -> Mapping[str, float]:
        """Returns mean reciprocal ranks, and the shares of realistic ranks that are at most k."""
        return {
            "mrr": float((1 / self.realistic).mean()),
            "mrr_optimistic": float((1 / self.optimistic).mean()),
            "mrr_pessimistic": float((1 / self.pessimistic).mean()),
            **{f"hits_{most}": float((self.realistic <= most).mean()) for most in HITS},
        }


def ranks_of(scores: torch.Tensor, span: range, queries: Queries, answers: TrueAnswers, ranks: Ranks) -> TripleRanks:
    """Returns the ranks of the wanted entities, on every rank.

    scores: of this rank's entities, [queries, entities of the span].
    span: numbers of these entities.
    """
    own = (queries.wanted >= span.start) & (queries.wanted < span.stop)
    rows = own.nonzero().flatten()
    columns = queries.wanted[own] - span.start
    true = torch.zeros(len(scores), dtype=scores.dtype)
    true[rows] = scores[rows, columns]
    true = ranks.sum(true)[:, None]
    others = torch.ones(scores.shape, dtype=torch.bool)
    places, entities = answers.to(queries)
    inside = (entities >= span.start) & (entities < span.stop)
    others[places[inside], entities[inside] - span.start] = False
    counts = [((scores > true) | ~scores.isfinite()) & others, (scores == true) & scores.isfinite() & others, others]
    better, equal, all_others = ranks.sum(torch.stack([count.sum(1) for count in counts]).double()).numpy()
    broken = ~true[:, 0].isfinite().numpy()
    last = 1 + all_others
    optimistic = np.where(broken, last, 1 + better)
    pessimistic = np.where(broken, last, 1 + better + equal)
    return TripleRanks(optimistic, (optimistic + pessimistic) / 2, pessimistic)
