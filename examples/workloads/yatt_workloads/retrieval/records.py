"""Documents and queries as a corpus' files hold them.

Consumes a folder with two files of JSON lines: `documents.jsonl` with `id`, `text` and, optionally, `group`, a number that
near-duplicates share; `queries.jsonl` with `id`, `text`, `relevant`, a list of documents, and `split`: `train`, `dev` or `test`.
Produces checked records; a `ValueError` names file, line and remedy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_workloads.text_lines import lines_of

SPLITS = ("train", "dev", "test")
NO_GROUP = -1
MOST_GROUPS = 2**63
DOCUMENTS = "documents.jsonl"
QUERIES = "queries.jsonl"


@dataclass(frozen=True)
class Document:
    """One document. group: what its near-duplicates share; -1 if it has none."""

    name: str
    text: str
    group: int = NO_GROUP


@dataclass(frozen=True)
class Query:
    """One query. relevant: the names of the documents that answer it."""

    name: str
    text: str
    relevant: tuple[str, ...]
    split: str


def words_of(text: str) -> list[str]:
    """Returns the words of a text: what white space separates, in lower case."""
    return text.lower().split()


def read_records(folder: Path) -> tuple[list[Document], list[Query]]:
    """Reads a corpus. Raises `ValueError`, with file and line, for what cannot be used."""
    documents = []
    seen: set[str] = set()
    for place, row in _rows(folder / DOCUMENTS):
        name = _named(row, place, seen)
        documents.append(Document(name, _text(row, place, f"document {name!r}"), _group(row, place)))
    if not documents:
        raise ValueError(f"{folder / DOCUMENTS}: is empty; expected at least one document")
    queries = []
    asked: set[str] = set()
    for place, row in _rows(folder / QUERIES):
        name = _named(row, place, asked)
        relevant = _relevant(row, place, name, seen)
        if row.get("split") not in SPLITS:
            raise ValueError(f"{place}: split is {row.get('split')!r}; expected one of {', '.join(SPLITS)}")
        queries.append(Query(name, _text(row, place, f"query {name!r}"), relevant, row["split"]))
    for split in SPLITS:
        if not any(query.split == split for query in queries):
            raise ValueError(f"{folder / QUERIES}: has no query of the split {split}; expected at least one")
    return documents, queries


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of a file, each with its place."""
    for place, line in lines_of(path):
        try:
            row = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place}: is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{place}: is {type(row).__name__}; expected an object")
        if "\\u" in line:  # the line itself is UTF-8, so that only an escape can bring half a character
            _require_characters(row, place)
        yield place, row


def _require_characters(row: dict[str, Any], place: str) -> None:
    """Raises `ValueError` for a text that UTF-8 cannot hold."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place}: has {error.object[error.start]!r}, one half of a surrogate pair, which is no character; expected both "
            "halves, or the character itself"
        ) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object. Raises `ValueError` for a key that it has twice, of which JSON would keep the last."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is used twice in an object")
        found[key] = value
    return found


def _named(row: dict[str, Any], place: str, seen: set[str]) -> str:
    name = row.get("id")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{place}: id is {name!r}; expected a text")
    if name in seen:
        raise ValueError(f"{place}: the id {name!r} is used twice")
    seen.add(name)
    return name


def _group(row: dict[str, Any], place: str) -> int:
    group = row.get("group")
    if group is None:
        return NO_GROUP
    if not isinstance(group, int) or isinstance(group, bool) or not 0 <= group < MOST_GROUPS:
        raise ValueError(f"{place}: group is {group!r}; expected a whole number from 0 to 2^63 - 1, or none")
    return group


def _relevant(row: dict[str, Any], place: str, name: str, documents: set[str]) -> tuple[str, ...]:
    """Returns the names of the documents that answer a query."""
    relevant = row.get("relevant")
    if not isinstance(relevant, list) or not relevant:
        raise ValueError(f"{place}: query {name!r} has no relevant document; expected a list of documents")
    for document in relevant:
        if not isinstance(document, str) or document not in documents:
            raise ValueError(f"{place}: query {name!r} names {document!r}, which is not in {DOCUMENTS}")
    if len(set(relevant)) < len(relevant):
        raise ValueError(f"{place}: query {name!r} names a document twice; expected each once")
    return tuple(relevant)


def _text(row: dict[str, Any], place: str, what: str) -> str:
    text = row.get("text")
    if not isinstance(text, str) or not words_of(text):
        raise ValueError(f"{place}: {what} is empty; expected a text of at least one word")
    return text
