"""What held-out queries say of an encoder, and the documents that it takes for relevant: by an index of all documents.

Consumes an encoder, a corpus and the ranks, each of which encodes its share. Produces figures and mined documents, the same on
every rank and on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.workloads.contract import Ranks, advanced
from yatt_workloads.retrieval.corpus import NO_DOCUMENT, Corpus, Numbers
from yatt_workloads.retrieval.encoder import DOCUMENT, QUERY, Encoded, Encoder, late_interaction
from yatt_workloads.retrieval.ranking import (
    Vectors,
    mean_reciprocal,
    nearest,
    ranks_of,
    recall,
    require_finite,
    searched,
)
from yatt_workloads.retrieval.settings import RetrievalSettings

TEXTS_AT_ONCE = 250
QUERIES_AT_ONCE = 50
HELD_OUT = ("dev", "test")
LATE = "late"


class Embedder:
    """Encodes texts without learning from them."""

    def __init__(self, encoder: Encoder, ranks: Ranks) -> None:
        self._encoder = encoder
        self._ranks = ranks

    @torch.no_grad()
    def encoded(self, words: Numbers, side: int) -> Encoded:
        """Returns the vectors of all texts, of which each rank has encoded its share.

        Texts are encoded in the same pieces on any number of ranks, so that their vectors have the same bits.
        """
        device = next(self._encoder.parameters()).device
        firsts = range(0, len(words), TEXTS_AT_ONCE)
        own = self._ranks.share(len(firsts))
        pieces = []
        for first in firsts[own.start : own.stop]:
            texts = torch.from_numpy(words[first : first + TEXTS_AT_ONCE])
            pieces.append(self._encoder(texts.to(device), side))
            advanced()
        pieces = pieces or [self._encoder(torch.from_numpy(words[:0]).to(device), side)]
        mine = {
            "vectors": torch.cat([piece.vectors for piece in pieces]).cpu().numpy(),
            "tokens": torch.cat([piece.tokens for piece in pieces]).cpu().numpy(),
        }
        parts = self._ranks.gathered(mine)
        vectors = np.concatenate([part["vectors"] for part in parts])
        tokens = np.concatenate([part["tokens"] for part in parts])
        return Encoded(torch.from_numpy(vectors), torch.from_numpy(tokens))


@dataclass(frozen=True, eq=False)
class Searches:
    """What a search for each query of a split has found. scores, numbers: [queries, k], the best document first."""

    scores: Vectors
    numbers: Numbers
    relevant: Numbers

    @property
    def ranks(self) -> npt.NDArray[np.float64]:
        """The rank of each query's best relevant document, as `ranks_of` returns it."""
        return ranks_of(self.scores, self.numbers, self.relevant)

    def recall(self, k: int) -> float:
        """Returns the Recall@k."""
        return recall(self.scores, self.numbers, self.relevant, k)


def searches(embedder: Embedder, corpus: Corpus, settings: RetrievalSettings) -> dict[str, Searches]:
    """Returns the searches of the dual encoder, by split, and those of late interaction, as `SPLIT/late`.

    Raises `ValueError` for vectors that are not finite.
    """
    documents = embedder.encoded(corpus.documents, DOCUMENT)
    found: dict[str, Searches] = {}
    for split in HELD_OUT:
        questions = corpus.queries[split]
        asked = embedder.encoded(questions.words, QUERY)
        depth = searched(settings.recall_at, len(corpus.documents), questions.relevant.shape[1])
        scores, numbers = nearest(asked.vectors.numpy(), documents.vectors.numpy(), depth)
        found[split] = Searches(scores, numbers, questions.relevant)
        if settings.has_late:
            late, order = late_nearest(asked.tokens, documents.tokens, depth)
            found[f"{split}/{LATE}"] = Searches(late, order, questions.relevant)
    return found


def figures(found: Mapping[str, Searches], settings: RetrievalSettings) -> dict[str, float]:
    """Returns the figures of the development and test queries.

    `accuracy` is the MRR@10 of the development queries. Settings and iterations are chosen by it; the test queries' say what the
    choice is worth. Raises `ValueError` for scores that are not finite.
    """
    told: dict[str, float] = {}
    for split in HELD_OUT:
        told[f"{split}/mrr_at_10"] = mean_reciprocal(found[split].ranks)
        told[f"{split}/recall_at_{settings.recall_at}"] = found[split].recall(settings.recall_at)
        if settings.has_late:
            told[f"{split}/late_mrr_at_10"] = mean_reciprocal(found[f"{split}/{LATE}"].ranks)
    return {"accuracy": told["dev/late_mrr_at_10" if not settings.has_dual else "dev/mrr_at_10"], **told}


def late_nearest(queries: torch.Tensor, documents: torch.Tensor, k: int) -> tuple[Vectors, Numbers]:
    """Returns scores and numbers of the k best documents by late interaction, [queries, k], compared with all."""
    scores = []
    numbers = []
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        best = late_interaction(queries[first : first + QUERIES_AT_ONCE], documents).topk(k, dim=1)
        scores.append(best.values.numpy())
        numbers.append(best.indices.numpy())
        advanced()
    return np.concatenate(scores), np.concatenate(numbers)


def mine(embedder: Embedder, corpus: Corpus, settings: RetrievalSettings) -> Numbers:
    """Returns the documents that an encoder ranks highest for each training query and that are not relevant.

    They are ranked by the dual encoder, or by late interaction if that is all that is trained. Result: [queries, mined_from],
    filled up with `NO_DOCUMENT` where there are too few documents.

    Raises `ValueError` for vectors that are not finite.
    """
    depth = settings.mined_from
    questions = corpus.queries["train"]
    documents = embedder.encoded(corpus.documents, DOCUMENT)
    asked = embedder.encoded(questions.words, QUERY)
    wanted = min(depth + questions.relevant.shape[1], len(corpus.documents))
    if settings.has_dual:
        _, numbers = nearest(asked.vectors.numpy(), documents.vectors.numpy(), wanted)
    else:
        scores, numbers = late_nearest(asked.tokens, documents.tokens, wanted)
        require_finite(scores)
    found = np.full((len(numbers), depth), NO_DOCUMENT, dtype=np.int64)
    for row, (ranked, relevant) in enumerate(zip(numbers, questions.relevant, strict=True)):
        kept = ranked[~np.isin(ranked, relevant)][:depth]
        found[row, : len(kept)] = kept
    return found
