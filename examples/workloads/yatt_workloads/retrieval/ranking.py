"""Search in an index of vectors by faiss, and what a ranking is worth: MRR@10 and Recall@k.

Ties count against the ranking: a relevant document stands behind all others with its score. Faiss keeps the documents with the
lowest numbers of those with one score, in an order that depends on k; with this rule neither matters.
"""

from __future__ import annotations

import faiss
import numpy as np
import numpy.typing as npt

from yatt_workloads.retrieval.corpus import Numbers

Vectors = npt.NDArray[np.float32]
CUT = 10
"""The rank up to which a relevant document counts for the MRR."""


def searched(k: int, documents: int, relevant: int) -> int:
    """Returns how many documents to search for, so that ties at the cut of the MRR and at k are seen.

    relevant: of a query, at most: they are not among the others that a rank counts.
    """
    return min(max(k, CUT) + relevant, documents)


def nearest(queries: Vectors, documents: Vectors, k: int) -> tuple[Vectors, Numbers]:
    """Returns scores and numbers of the k best documents of each query, [queries, k], by inner product, exactly.

    Raises `ValueError` for vectors that are not finite, which faiss would never find, and for fewer documents than k.
    """
    for what, vectors in (("queries", queries), ("documents", documents)):
        if len(broken := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
            raise ValueError(
                f"{what}: {len(broken)} of {len(vectors)} vectors are not finite; the first is {broken[0]}"
            )
    if k > len(documents):
        raise ValueError(f"a search for {k} of {len(documents)} documents; expected at most as many as there are")
    index = faiss.IndexFlatIP(documents.shape[1])
    index.add(np.ascontiguousarray(documents, dtype=np.float32))
    scores, numbers = index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
    return scores, numbers


def ranks_of(scores: Vectors, numbers: Numbers, relevant: Numbers) -> npt.NDArray[np.float64]:
    """Returns the rank, from 1, of each query's best relevant document; infinite for one that was not found.

    scores, numbers: what a search has found, in falling order, [queries, k]. relevant: [queries, most], filled up with -1.

    Raises `ValueError` for scores that are not finite.
    """
    require_finite(scores)
    hits = (numbers[:, :, None] == relevant[:, None, :]).any(-1)
    best = np.where(hits, scores, -np.inf).max(1)
    others = ((scores >= best[:, None]) & ~hits).sum(1)
    return np.where(hits.any(1), others + 1.0, np.inf)


def require_finite(scores: Vectors) -> None:
    """Raises `ValueError` for scores that are not finite, [queries, k]."""
    if len(broken := np.flatnonzero(~np.isfinite(scores).all(axis=1))):
        raise ValueError(
            f"scores of {len(broken)} of {len(scores)} queries are not finite, so that they have no rank; first query {broken[0]}"
        )


def mean_reciprocal(ranks: npt.NDArray[np.float64]) -> float:
    """Returns the MRR@10."""
    return float(np.where(ranks <= CUT, 1 / ranks, 0.0).mean())


def recall(scores: Vectors, numbers: Numbers, relevant: Numbers, k: int) -> float:
    """Returns the share of relevant documents among the k best, the mean over queries.

    One that shares its score with documents beyond the k best does not count. Arguments as for `ranks_of`; where there are more
    documents than k, a search for as many as `searched` says.
    """
    there = relevant >= 0
    same = relevant[:, :, None] == numbers[:, None, :]
    own = np.where(same, scores[:, None, :], -np.inf).max(-1)
    not_worse = (scores[:, None, :] >= own[:, :, None]).sum(-1)
    found = same.any(-1) & there & (not_worse <= k)
    return float((found.sum(1) / there.sum(1)).mean())
