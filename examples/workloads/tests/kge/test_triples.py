"""Graphs from text files: what cannot be used is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from yatt_workloads.kge.settings import GeneratedGraph
from yatt_workloads.kge.triples import read_graph, write_generated, write_graph_of

GOOD = {"train": "a\tr\tb\nb\tr\tc\n", "valid": "a\tr\tc\n", "test": "b\tr\ta\n"}


def source_of(folder: Path, **changed: str) -> Path:
    source = folder / "source"
    source.mkdir()
    for split, text in {**GOOD, **changed}.items():
        (source / f"{split}.txt").write_bytes(text.encode("utf-8", "surrogateescape"))
    return source


def test_a_folder_becomes_numbers(tmp_path: Path) -> None:
    write_graph_of(source_of(tmp_path, train="a\tr\tb\r\nb\tr\tc"), tmp_path)
    graph = read_graph(tmp_path)
    assert (graph.entities, graph.relations) == (3, 1)
    assert graph.train.tolist() == [[0, 0, 1], [1, 0, 2]] and graph.test.tolist() == [[1, 0, 0]]
    assert (tmp_path / "entities.txt").read_text() == "a\nb\nc\n"


def test_a_name_may_have_any_character_but_those_that_end_it(tmp_path: Path) -> None:
    train = "a\rb\tr\x0b\tb\nb\tr\x0b\tc\u2028d\n"
    write_graph_of(source_of(tmp_path, train=train, valid="b\tr\x0b\tb\n", test="b\tr\x0b\ta\rb\n"), tmp_path)
    graph = read_graph(tmp_path)
    assert graph.entity_names == ("a\rb", "b", "c\u2028d") and graph.relation_names == ("r\x0b",)
    assert (graph.entities, graph.relations) == (3, 1)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"test": "b\tr\ta\nb\tr\tzoe\n"}, r"test.txt:2: the entity 'zoe' is in no training triple"),
        ({"valid": "zoe\tr\tb\n"}, r"valid.txt:1: the entity 'zoe' is in no training triple"),
        ({"test": "a\tlikes\tb\n"}, r"test.txt:1: the relation 'likes' is in no training triple"),
        ({"test": "a\tr\tb\n"}, r"test.txt:1: this triple is in train.txt already"),
        ({"train": "a\tr\tb\na r b\n"}, r"train.txt:2: expected head, relation and tail, separated by tabs .*'a r b'"),
        ({"train": "a\tr\tb\n\nb\tr\tc\n"}, r"train.txt:2: is an empty line; expected none"),
        ({"train": "a\t\tb\n"}, r"train.txt:1: expected head, relation and tail"),
        ({"valid": "a\tr\tc\na\tr\tc\n"}, r"valid.txt:2: this triple is in valid.txt already; expected it once"),
        ({"train": "a\tr\tb\nb\tr\t\udcff\n"}, r"train.txt:2: is not UTF-8: .*0xff"),
        ({"valid": ""}, r"valid.txt: is empty; expected at least one triple"),
    ],
)
def test_triples_that_cannot_be_used(changed: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        write_graph_of(source_of(tmp_path, **changed), tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere/train.txt: no such file$"):
        write_graph_of(tmp_path / "nowhere", tmp_path)


def test_a_generated_graph_has_one_answer_to_each_query(tmp_path: Path) -> None:
    write_generated(GeneratedGraph(entities=12, relations=8), 1, tmp_path)
    graph = read_graph(tmp_path)
    assert len(graph.known) == 96 == len({tuple(row) for row in graph.known[:, :2].tolist()})
    turns = {(int(relation), int(tail - head) % 12) for head, relation, tail in graph.known}
    assert len(turns) == 8 and len(graph.valid) == len(graph.test) == 9
    with pytest.raises(ValueError, match="without a training triple"):
        write_generated(GeneratedGraph(entities=60, relations=1, held_out=0.45), 1, tmp_path)
