"""A corpus as numbers: words of documents and queries, relevant documents, groups.

Consumes records. Produces the files of a run's inputs, and reads them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from yatt_workloads.array_files import save_arrays
from yatt_workloads.retrieval.records import DOCUMENTS, SPLITS, Document, Query, words_of

PADDING = 0
UNKNOWN = 1
FIRST_WORD = 2
NO_DOCUMENT = -1
TENSORS = "corpus.safetensors"
VOCABULARY = "vocabulary.json"
SETTINGS = "settings.json"
"""The run's settings, for whoever exports the retriever."""
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Questions:
    """Queries of a split. words: [queries, words]. relevant: [queries, most], filled up with `NO_DOCUMENT`."""

    words: Numbers
    relevant: Numbers


@dataclass(frozen=True)
class Corpus:
    """Documents, [documents, words], their groups, [documents], and queries by split. vocabulary: words by number."""

    documents: Numbers
    groups: Numbers
    queries: dict[str, Questions]
    vocabulary: tuple[str, ...]


def write_corpus(
    folder: Path, documents: Sequence[Document], queries: Sequence[Query], document_words: int, query_words: int
) -> None:
    """Writes a corpus, with the documents' texts beside the numbers.

    document_words, query_words: what is longer is cut.
    """
    known = sorted({word for document in documents for word in words_of(document.text)})
    numbers = {word: number for number, word in enumerate(known, FIRST_WORD)}
    places = {document.name: place for place, document in enumerate(documents)}
    tensors = {
        "documents": encode_texts([document.text for document in documents], numbers, document_words),
        "groups": np.array([document.group for document in documents], dtype=np.int64),
    }
    for split in SPLITS:
        chosen = [query for query in queries if query.split == split]
        tensors[f"queries.{split}"] = encode_texts([query.text for query in chosen], numbers, query_words)
        tensors[f"relevant.{split}"] = padded(
            [[places[name] for name in query.relevant] for query in chosen], NO_DOCUMENT
        )
    save_arrays(tensors, folder / TENSORS)
    (folder / VOCABULARY).write_text(json.dumps(known), encoding="utf-8")
    lines = (json.dumps({"id": document.name, "text": document.text}) for document in documents)
    (folder / DOCUMENTS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_corpus(folder: Path) -> Corpus:
    """Reads what `write_corpus` has written."""
    tensors = load_file(folder / TENSORS)
    queries = {split: Questions(tensors[f"queries.{split}"], tensors[f"relevant.{split}"]) for split in SPLITS}
    known = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
    return Corpus(tensors["documents"], tensors["groups"], queries, tuple(known))


def encode_texts(texts: Iterable[str], numbers: dict[str, int], longest: int) -> Numbers:
    """Returns the numbers of the texts' words, [texts, words], filled up with `PADDING`."""
    return padded([[numbers.get(word, UNKNOWN) for word in words_of(text)[:longest]] for text in texts], PADDING)


def padded(rows: Sequence[Sequence[int]], filling: int) -> Numbers:
    """Returns rows of different lengths as one array."""
    found = np.full((len(rows), max(map(len, rows))), filling, dtype=np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found
