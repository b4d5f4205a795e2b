"""What `yatt init` is told of a corpus, of triples and of arrays: a spec that the workload's own reader accepts, or the error."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from yatt_core.spec import spec_of_tree
from yatt_core.workloads.contract import Recognition
from yatt_core.workloads.inputs import materialise_workload
from yatt_workloads.recognisers import corpus, node_graph, triples

ASK = (corpus, triples, node_graph)
LINES = {"train": "a\tr\tb\nb\tr\tc\nc\tr\ta\n", "valid": "a\tr\tc\n", "test": "b\tr\ta\n"}


def corpus_folder(folder: Path) -> None:
    documents = [{"id": "a", "text": "red apple"}, {"id": "b", "text": "green pear"}]
    queries = [{"id": split, "text": "apple", "relevant": ["a"], "split": split} for split in ("train", "dev", "test")]
    for name, rows in (("documents", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def triples_folder(folder: Path) -> None:
    for split, text in LINES.items():
        (folder / f"{split}.txt").write_text(text)


def node_folder(folder: Path) -> None:
    np.save(folder / "features.npy", np.ones((6, 2), np.float32))
    np.save(folder / "edges.npy", np.array([[0, 1], [2, 3], [4, 5]]))
    np.save(folder / "labels.npy", np.array([0, 1, 0, 1, 0, 1]))
    np.save(folder / "splits.npy", np.array([0, 0, 1, 1, 2, 2]))


@pytest.mark.parametrize(
    ("write", "recognise", "what"),
    [
        (corpus_folder, corpus, "a corpus of 2 documents and 3 queries"),
        (triples_folder, triples, "a knowledge graph of 5 triples, 3 entities and 1 relations"),
        (node_folder, node_graph, "a graph of 6 nodes and 3 edges"),
    ],
)
def test_a_folder_is_known_by_one_and_gets_a_spec_that_can_be_read(
    write: Callable[[Path], None], recognise: Callable[[Path], Recognition | None], what: str, tmp_path: Path
) -> None:
    place = tmp_path / "data"
    place.mkdir()
    assert [ask(place) for ask in ASK] == [None] * 3
    write(place)
    found = [ask(place) for ask in ASK]
    mine = found[ASK.index(recognise)]
    assert mine is not None and mine.what == what
    assert sum(each is not None for each in found) == 1
    spec = spec_of_tree({"name": "recognised", **mine.spec}, "recognised", tmp_path)
    materialise_workload(spec, tmp_path / "run")
    assert list((tmp_path / "run" / "inputs").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("write", "file", "text", "said"),
    [
        (corpus_folder, "documents.jsonl", '{"id": "a", "text": ""}\n', r"documents.jsonl:1: document 'a' is empty"),
        (triples_folder, "test.txt", "a\tr\tnobody\n", r"test.txt:1: the entity 'nobody' is in no training triple"),
        (triples_folder, "train.txt", f"{LINES['train']}broken\n", r"train.txt:4: expected head, relation and tail"),
        (node_folder, "labels.npy", "no array", r"labels.npy: is no .npy file"),
    ],
)
def test_what_is_meant_for_it_and_cannot_be_read_is_an_error(
    write: Callable[[Path], None], file: str, text: str, said: str, tmp_path: Path
) -> None:
    write(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=said):
        [ask(tmp_path) for ask in ASK]


@pytest.mark.parametrize(
    ("write", "file", "said"),
    [
        (corpus_folder, "queries.jsonl", "a corpus (documents.jsonl), but queries.jsonl is missing"),
        (corpus_folder, "documents.jsonl", "a corpus (queries.jsonl), but documents.jsonl is missing"),
        (triples_folder, "test.txt", "a knowledge graph (train.txt, valid.txt), but test.txt is missing"),
        (triples_folder, "train.txt", "a knowledge graph (valid.txt, test.txt), but train.txt is missing"),
        (
            node_folder,
            "splits.npy",
            "a graph of nodes (features.npy, edges.npy, labels.npy), but splits.npy is missing",
        ),
        (node_folder, "edges.npy", "a graph of nodes (features.npy, labels.npy, splits.npy), but edges.npy is missing"),
    ],
)
def test_what_a_folder_lacks_is_named(write: Callable[[Path], None], file: str, said: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(ValueError) as refused:
        [ask(tmp_path) for ask in ASK]
    assert str(refused.value) == f"{tmp_path}: looks like {said}"
    (tmp_path / file).mkdir()
    with pytest.raises(ValueError, match=f"but {file} is no regular file"):
        [ask(tmp_path) for ask in ASK]


def test_a_few_of_the_files_are_not_enough(tmp_path: Path) -> None:
    triples_folder(tmp_path)
    node_folder(tmp_path)
    for name in ("valid.txt", "test.txt", "edges.npy", "splits.npy"):
        (tmp_path / name).unlink()
    assert [ask(tmp_path) for ask in ASK] == [None] * 3


def test_texts_of_these_names_are_no_triples(tmp_path: Path) -> None:
    for split in LINES:
        (tmp_path / f"{split}.txt").write_text("Once upon a time\nthere was a\tgraph\n")
    assert triples(tmp_path) is None


def test_the_package_names_them() -> None:
    told = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    for name, target in told["yatt.recognisers"].items():
        module, _, function = target.partition(":")
        assert getattr(import_module(module), function).__name__ == name
