"""Random walks on the training triples: pairs of entities that DeepWalk learns from, and probabilities as statistics.

A walk does not see relations, nor directions. Statistics are the probabilities that a walk which is named by letters (h for
heads, r for relations, t for tails) ends at an entity, if it starts from what is known.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from yatt_workloads.kge.ranking import Queries
from yatt_workloads.kge.settings import Walk
from yatt_workloads.kge.triples import Triples

Numbers = npt.NDArray[np.int64]
COLUMNS = {"h": 0, "r": 1, "t": 2}
TURNED = str.maketrans("ht", "th")


class Neighbours:
    """The neighbours of each entity, once for each triple that joins them."""

    def __init__(self, triples: Triples, entities: int) -> None:
        ends = np.concatenate([triples[:, [0, 2]], triples[:, [2, 0]]])
        self._others = ends[np.argsort(ends[:, 0], kind="stable"), 1]
        self._counts = np.bincount(ends[:, 0], minlength=entities)
        self._starts = np.cumsum(self._counts) - self._counts

    def pairs(self, count: int, hops: int, noise: np.random.Generator) -> Numbers:
        """Returns pairs of a walk's start and one of its next `hops` entities, [count, 2]."""
        starts = noise.integers(len(self._counts), size=count)
        ends = starts.copy()
        lengths = noise.integers(1, hops + 1, size=count)
        for length in range(1, hops + 1):
            onward = lengths >= length
            here = ends[onward]
            chosen = noise.integers(self._counts[here])
            ends[onward] = self._others[self._starts[here] + chosen]
        return np.stack([starts, ends], axis=1)


class Statistics:
    """Probabilities of walks of named kinds."""

    def __init__(self, triples: Triples, entities: int, relations: int) -> None:
        self._triples = torch.from_numpy(triples)
        self._sizes = {"h": entities, "r": relations, "t": entities}
        self._matrices: dict[str, torch.Tensor] = {}

    def of(self, walk: Walk, queries: Queries) -> torch.Tensor:
        """Returns the probability of each entity at the end of a walk, [queries, entities]."""
        letters = walk.translate(TURNED) if queries.inverse else str(walk)
        start = queries.relation if letters[0] == "r" else queries.known
        reached = torch.zeros(len(start), self._sizes[letters[0]], dtype=torch.float64)
        reached[torch.arange(len(start)), start] = 1
        for here, there in pairwise(letters):
            reached = (self._step(here + there) @ reached.T).T
        return reached

    def _step(self, letters: str) -> torch.Tensor:
        """Returns the probability of a step to each of `there` from each of `here`, sparse, [there, here]."""
        if letters not in self._matrices:
            here, there = (self._triples[:, COLUMNS[letter]] for letter in letters)
            share = 1 / here.bincount(minlength=self._sizes[letters[0]]).double()
            size = (self._sizes[letters[1]], self._sizes[letters[0]])
            places = torch.stack([there, here])
            matrix = torch.sparse_coo_tensor(places, share[here], size, check_invariants=True)
            self._matrices[letters] = matrix.coalesce()
        return self._matrices[letters]
