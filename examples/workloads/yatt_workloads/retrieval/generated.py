"""A generated retrieval task, on which a late interaction is measurably better than a dual encoder.

Documents are near-duplicates in clusters. Each has some concepts, of which every one has two surface forms; a query names a few
concepts in any form. One vector a document has to hold all its concepts at once, whereas a late interaction may look for each.
Produces records as `records.py` reads them from files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from yatt_workloads.retrieval.records import Document, Query

CLUSTER = 10
CONCEPTS = 100
FORMS = 2
NOISE_WORDS = 40
DESCRIBED = 8
"""Concepts of a document."""
CHANGED = 3
"""How many of them differ from its cluster's."""
ASKED = 3
"""Concepts of a query."""
MOST_TRIES = 10_000
"""How many queries in a row may have several answers before a task is given up."""


@dataclass(frozen=True)
class GeneratedTask:
    """Sizes of a generated task. queries: by split."""

    documents: int
    queries: dict[str, int]


def generate(task: GeneratedTask, seed: int) -> tuple[list[Document], list[Query]]:
    """Returns documents and queries. Only one document has all concepts of a query that is held out.

    Raises `ValueError` for so many documents that hardly any query has one answer.
    """
    noise = np.random.default_rng(seed)
    concepts = _concepts(task.documents, noise)
    documents = [
        Document(f"d{number}", " ".join(_words(noise, row, 2)), number // CLUSTER)
        for number, row in enumerate(concepts)
    ]
    has = np.zeros((task.documents, CONCEPTS), dtype=bool)
    np.put_along_axis(has, concepts, True, axis=1)
    queries = []
    for split, wanted in task.queries.items():
        tries = 0
        while wanted:
            gold = int(noise.integers(task.documents))
            asked = noise.choice(concepts[gold], ASKED, replace=False)
            if split != "train" and has[:, asked].all(axis=1).sum() > 1:
                tries += 1
                if tries > MOST_TRIES:
                    raise ValueError(
                        f"documents: {task.documents} are so many that hardly any query has one answer only; expected fewer"
                    )
                continue
            tries = 0
            wanted -= 1
            text = " ".join(_words(noise, asked, 1))
            queries.append(Query(f"{split}{wanted}", text, (f"d{gold}",), split))
    return documents, queries


def _concepts(documents: int, noise: np.random.Generator) -> np.ndarray:
    """Returns the concepts of each document, [documents, described]."""
    rows = []
    for number in range(documents):
        if number % CLUSTER == 0:
            common = noise.permutation(CONCEPTS)[:DESCRIBED]
        row = common.copy()
        places = noise.permutation(DESCRIBED)[:CHANGED]
        row[places] = noise.choice(np.setdiff1d(np.arange(CONCEPTS), common), CHANGED, replace=False)
        rows.append(row)
    return np.stack(rows)


def _words(noise: np.random.Generator, concepts: np.ndarray, meaningless: int) -> list[str]:
    """Returns a word for each concept, in one of its forms, and some without meaning, in any order."""
    words = [f"c{concept}{'ab'[noise.integers(FORMS)]}" for concept in concepts]
    words += [f"n{noise.integers(NOISE_WORDS)}" for _ in range(meaningless)]
    return [words[place] for place in noise.permutation(len(words))]
