"""A retrieval run for people: the queries and documents of an iteration as texts, recall by k, and what searches found.

Consumes a corpus, the names of its documents, and an iteration's columns or an evaluation's searches. Produces tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from yatt_core.workloads.contract import Columns, Listing
from yatt_workloads.retrieval.candidates import CANDIDATES, QUERIES
from yatt_workloads.retrieval.corpus import FIRST_WORD, NO_DOCUMENT, PADDING, Corpus, Numbers
from yatt_workloads.retrieval.evaluation import Searches
from yatt_workloads.retrieval.records import DOCUMENTS

SHOWN_QUERIES = 50
SHOWN_SEARCHES = 20
SHOWN_DOCUMENTS = 5
CUTS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1_000)


def document_names(inputs: Path) -> tuple[str, ...]:
    """Returns the ids of the documents, in the order of their numbers."""
    with (inputs / DOCUMENTS).open(encoding="utf-8") as stream:
        return tuple(json.loads(line)["id"] for line in stream)


def text_of(words: Numbers, vocabulary: tuple[str, ...]) -> str:
    """Returns a text of numbers, [words], as words; `?` for one that no document has."""
    known = [int(word) for word in words if word != PADDING]
    return " ".join(vocabulary[word - FIRST_WORD] if word >= FIRST_WORD else "?" for word in known)


def in_words(columns: Columns, corpus: Corpus, names: tuple[str, ...]) -> Listing:
    """Returns the first queries that an iteration learns from, each with its candidates: the relevant one, and the others."""
    queries = np.asarray(columns[QUERIES])
    candidates = np.asarray(columns[CANDIDATES])
    vocabulary = corpus.vocabulary
    rows = []
    for step, place in list(np.ndindex(queries.shape))[:SHOWN_QUERIES]:
        query = text_of(corpus.queries["train"].words[queries[step, place]], vocabulary)
        relevant, *others = candidates[step, place].tolist()
        text = text_of(corpus.documents[relevant], vocabulary)
        rows.append((step + 1, query, f"{names[relevant]}: {text}", ", ".join(names[number] for number in others)))
    return Listing(("step", "query", "relevant document", "other candidates"), tuple(rows))


def recall_by_k(found: Mapping[str, Searches], most: int) -> Listing:
    """Returns the recall of each search for rising k, up to the number of documents that are searched for."""
    cuts = sorted({k for k in CUTS if k < most} | {most})
    names = list(found)
    rows = tuple((k, *(found[name].recall(k) for name in names)) for k in cuts)
    return Listing(("k", *(name.replace("/", " ") for name in names)), rows)


def ranked(found: Searches, words: Numbers, corpus: Corpus, names: tuple[str, ...]) -> Listing:
    """Returns the documents that searches for the first queries have ranked highest. words: of all queries, [queries, words]."""
    rows = []
    ranks = found.ranks
    for place in range(min(SHOWN_SEARCHES, len(words))):
        relevant = [names[number] for number in found.relevant[place].tolist() if number != NO_DOCUMENT]
        best = [names[number] for number in found.numbers[place, :SHOWN_DOCUMENTS].tolist()]
        rank = int(ranks[place]) if np.isfinite(ranks[place]) else None
        rows.append((text_of(words[place], corpus.vocabulary), ", ".join(relevant), rank, ", ".join(best)))
    return Listing(("query", "relevant", "rank", "ranked highest"), tuple(rows))
