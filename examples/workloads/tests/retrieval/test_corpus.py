"""A corpus of one's own: what cannot be used is refused with file, line and remedy; the generated task is what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yatt_workloads.retrieval.corpus import NO_DOCUMENT, PADDING, UNKNOWN, read_corpus, write_corpus
from yatt_workloads.retrieval.generated import CLUSTER, DESCRIBED, GeneratedTask, generate
from yatt_workloads.retrieval.records import read_records

DOCUMENTS: list[dict[str, Any]] = [{"id": "a", "text": "Red  apple"}, {"id": "b", "text": "green pear", "group": 4}]
QUERIES: list[dict[str, Any]] = [
    {"id": "1", "text": "apple", "relevant": ["a"], "split": "train"},
    {"id": "2", "text": "blue pear", "relevant": ["b", "a"], "split": "dev"},
    {"id": "3", "text": "red", "relevant": ["a"], "split": "test"},
]


def written(folder: Path, documents: list[Any], queries: list[Any]) -> Path:
    for name, rows in (("documents.jsonl", documents), ("queries.jsonl", queries)):
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def changed(rows: list[dict[str, Any]], number: int, **values: Any) -> list[dict[str, Any]]:
    return [{**row, **values} if place == number else row for place, row in enumerate(rows)]


def test_a_corpus_of_files_becomes_numbers(tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    write_corpus(inputs, *read_records(written(tmp_path, DOCUMENTS, QUERIES)), document_words=64, query_words=32)
    corpus = read_corpus(inputs)
    apple, green, pear, red = range(2, 6)
    assert corpus.vocabulary == ("apple", "green", "pear", "red")
    assert corpus.documents.tolist() == [[red, apple], [green, pear]] and corpus.groups.tolist() == [-1, 4]
    assert corpus.queries["dev"].words.tolist() == [[UNKNOWN, pear]]
    assert corpus.queries["dev"].relevant.tolist() == [[1, 0]] and corpus.queries["test"].relevant.tolist() == [[0]]


@pytest.mark.parametrize(
    ("documents", "queries", "said"),
    [
        (changed(DOCUMENTS, 1, text=" \t"), QUERIES, "documents.jsonl:2: document 'b' is empty; expected a text"),
        (changed(DOCUMENTS, 0, text=None), QUERIES, "documents.jsonl:1: document 'a' is empty"),
        (changed(DOCUMENTS, 1, id="a"), QUERIES, "documents.jsonl:2: the id 'a' is used twice"),
        (changed(DOCUMENTS, 1, group="x"), QUERIES, "documents.jsonl:2: group is 'x'; expected a whole"),
        (changed(DOCUMENTS, 1, group=True), QUERIES, "documents.jsonl:2: group is True; expected a whole number"),
        (changed(DOCUMENTS, 1, group=-2), QUERIES, "documents.jsonl:2: group is -2; expected a whole number"),
        (changed(DOCUMENTS, 1, group=2**63), QUERIES, "documents.jsonl:2: group is 9223372036854775808; expected"),
        ([], QUERIES, "documents.jsonl: is empty; expected at least one document"),
        (DOCUMENTS, [], "queries.jsonl: has no query of the split train"),
        (DOCUMENTS, changed(QUERIES, 1, relevant=[]), "queries.jsonl:2: query '2' has no relevant document"),
        (DOCUMENTS, changed(QUERIES, 2, relevant=["z"]), "queries.jsonl:3: query '3' names 'z', which is not in"),
        (DOCUMENTS, changed(QUERIES, 2, relevant=[["a"]]), "queries.jsonl:3: query '3' names ['a'], which is not in"),
        (DOCUMENTS, changed(QUERIES, 2, relevant=["a", "a"]), "queries.jsonl:3: query '3' names a document twice"),
        (DOCUMENTS, changed(QUERIES, 0, text=""), "queries.jsonl:1: query '1' is empty"),
        (DOCUMENTS, changed(QUERIES, 0, split="all"), "queries.jsonl:1: split is 'all'; expected one of train, dev"),
        (DOCUMENTS, QUERIES[:2], "has no query of the split test"),
        ([*DOCUMENTS, 3], QUERIES, "documents.jsonl:3: is int; expected an object"),
    ],
)
def test_what_cannot_be_used_is_refused(documents: list[Any], queries: list[Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        read_records(written(tmp_path, documents, queries))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"id": "\xff"}', "queries.jsonl:2: is not UTF-8"),
        (b"[" * 100_000, "queries.jsonl:2: is no JSON"),
        (b'{"id": ' + b"1" * 5_000 + b"}", "queries.jsonl:2: is no JSON"),
        (b'{"id": "2", "id": "3"}', "queries.jsonl:2: is no JSON: the key 'id' is used twice in an object"),
        (b"", "queries.jsonl:2: is an empty line; expected none"),
        (rb'{"id": "2\ud800"}', r"queries.jsonl:2: has '\ud800', one half of a surrogate pair, which is no character"),
        (rb'{"id": "2", "\uDC00": 1}', r"queries.jsonl:2: has '\udc00', one half of a surrogate pair"),
    ],
)
def test_lines_that_are_no_records(line: bytes, said: str, tmp_path: Path) -> None:
    written(tmp_path, DOCUMENTS, [])
    (tmp_path / "queries.jsonl").write_bytes(json.dumps(QUERIES[0]).encode() + b"\n" + line + b"\n")
    with pytest.raises(ValueError) as refused:
        read_records(tmp_path)
    assert said in str(refused.value)


def test_escaped_characters_are_read(tmp_path: Path) -> None:
    documents = [{"id": "a", "text": "ä \U0001f600"}]
    written(tmp_path, documents, changed(QUERIES, 1, relevant=["a"]))
    assert "\\ud83d\\ude00" in (tmp_path / "documents.jsonl").read_text()
    assert read_records(tmp_path)[0][0].text == "ä \U0001f600"


def test_a_task_in_which_every_query_has_several_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yatt_workloads.retrieval.generated.MOST_TRIES", 20)
    monkeypatch.setattr("yatt_workloads.retrieval.generated.ASKED", 1)
    with pytest.raises(ValueError, match="documents: 300 are so many that hardly any query has one answer only"):
        generate(GeneratedTask(documents=300, queries={"dev": 1}), seed=1)


def test_only_one_generated_document_answers_a_held_out_query() -> None:
    task = GeneratedTask(documents=200, queries={"train": 50, "dev": 30, "test": 30})
    documents, queries = generate(task, seed=5)
    assert (documents, queries) == generate(task, seed=5) != generate(task, seed=6)
    concepts = [{word[:-1] for word in document.text.split() if word[0] == "c"} for document in documents]
    assert all(len(found) == DESCRIBED for found in concepts)
    for number, document in enumerate(documents):
        siblings = [concepts[other] for other in range(200) if other // CLUSTER == number // CLUSTER]
        assert document.group == number // CLUSTER
        assert np.mean([len(concepts[number] & sibling) for sibling in siblings]) > 2  # any two share 0.6
    for query in queries:
        asked = {word[:-1] for word in query.text.split() if word[0] == "c"}
        answers = [f"d{number}" for number, found in enumerate(concepts) if asked <= found]
        assert query.relevant[0] in answers and (query.split == "train" or len(answers) == 1)


def test_long_texts_are_cut_and_short_ones_filled_up(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "one two three"}, {"id": "b", "text": "two"}]
    documents, queries = read_records(written(tmp_path, rows, QUERIES[:1] + changed(QUERIES, 1, relevant=["b"])[1:]))
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    write_corpus(inputs, documents, queries, document_words=2, query_words=1)
    corpus = read_corpus(inputs)
    assert corpus.documents.shape == (2, 2) and corpus.documents[1, 1] == PADDING
    assert corpus.queries["dev"].words.shape == (1, 1) and NO_DOCUMENT not in corpus.queries["dev"].relevant
