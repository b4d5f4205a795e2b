"""Which queries an iteration learns from, and the documents that are drawn for each.

Consumes the corpus and a draw; produces arrays of numbers, [steps, batch] and [steps, batch, candidates]. The first candidate is
relevant, then come siblings of its group, then mined documents, then any.
"""

from __future__ import annotations

import numpy as np

from yatt_core.workloads.contract import Columns, Draw
from yatt_workloads.retrieval.corpus import NO_DOCUMENT, Corpus, Numbers
from yatt_workloads.retrieval.settings import RetrievalSettings

QUERIES = "queries"
CANDIDATES = "candidates"


class CandidateDraws:
    """Draws from a corpus."""

    def __init__(self, corpus: Corpus, settings: RetrievalSettings) -> None:
        self._settings = settings
        self._documents = len(corpus.documents)
        self._relevant = corpus.queries["train"].relevant
        self._groups = corpus.groups
        self._members = _members(corpus.groups)

    def draw(self, draw: Draw) -> Columns:
        """Returns what an iteration learns from; mined documents are not yet among the candidates."""
        settings = self._settings
        noise = draw.generator("batches")
        queries = noise.integers(len(self._relevant), size=(settings.steps, settings.batch))
        candidates = noise.integers(self._documents, size=(*queries.shape, settings.candidates))
        known = (self._relevant[queries] != NO_DOCUMENT).sum(-1)
        chosen = noise.integers(known)
        positives = np.take_along_axis(self._relevant[queries], chosen[..., None], -1)[..., 0]
        candidates[..., 0] = positives
        for place in np.ndindex(queries.shape):
            siblings = self._siblings(int(positives[place]), noise)
            candidates[place][1 : 1 + len(siblings)] = siblings
        return {QUERIES: queries, CANDIDATES: candidates}

    def _siblings(self, document: int, noise: np.random.Generator) -> Numbers:
        """Returns other documents of a document's group, as many as are wanted and there."""
        members = self._members.get(int(self._groups[document]))
        if members is None or not self._settings.siblings:
            return np.zeros(0, dtype=np.int64)
        others = members[members != document]
        return noise.permutation(others)[: self._settings.siblings]


def with_mined(
    columns: Columns, mined: Numbers, settings: RetrievalSettings, noise: np.random.Generator
) -> dict[str, Numbers]:
    """Returns an iteration's columns with mined documents among the candidates.

    mined: documents that the index has found for each training query, [queries, found]; `NO_DOCUMENT` where there is none yet,
        which leaves the candidate that was drawn.
    """
    queries = np.asarray(columns[QUERIES])
    candidates = np.array(columns[CANDIDATES])
    order = noise.permuted(np.broadcast_to(np.arange(mined.shape[1]), (*queries.shape, mined.shape[1])), axis=-1)
    chosen = np.take_along_axis(mined[queries], order[..., : settings.mined], -1)
    first = 1 + settings.siblings
    places = candidates[..., first : first + settings.mined]
    candidates[..., first : first + settings.mined] = np.where(chosen == NO_DOCUMENT, places, chosen)
    return {QUERIES: queries, CANDIDATES: candidates}


def also_relevant(relevant: Numbers, documents: Numbers, right: Numbers) -> np.ndarray:
    """Returns where a document answers a query too without being the one it was drawn with, [queries, documents].

    relevant: relevant documents of each query. documents: the documents of a batch. right: each query's place among them.
    """
    also: np.ndarray = (relevant[:, :, None] == documents).any(1)
    also[np.arange(len(right)), right] = False
    return also


def _members(groups: Numbers) -> dict[int, Numbers]:
    """Returns the documents of each group; a document without a group is in none."""
    return {int(group): np.flatnonzero(groups == group) for group in np.unique(groups) if group >= 0}
