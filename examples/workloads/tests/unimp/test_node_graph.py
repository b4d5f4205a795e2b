"""Graphs from arrays: what cannot be used is refused with file and node."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yatt_workloads.unimp.node_graph import read_graph, write_generated, write_graph_of
from yatt_workloads.unimp.settings import BlockModel

GOOD: dict[str, Any] = {
    "features": np.eye(5),
    "edges": np.array([[0, 1], [1, 0], [2, 3], [4, 4]]),
    "labels": np.array([0, 1, 0, 1, -1]),
    "splits": np.array([0, 0, 1, 2, -1]),
}


def source_of(folder: Path, **changed: Any) -> Path:
    source = folder / "source"
    source.mkdir()
    for name, array in {**GOOD, **changed}.items():
        np.save(source / f"{name}.npy", array)
    return source


def test_edges_go_both_ways_once(tmp_path: Path) -> None:
    write_graph_of(source_of(tmp_path), tmp_path)
    graph = read_graph(tmp_path)
    pairs = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    assert list(pairs) == [(1, 0), (0, 1), (3, 2), (2, 3)], "by target, without the loop"
    assert graph.classes == 2 and graph.known_best is None and graph.features.dtype == np.float32


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"labels": np.array([0, 1, 0, -1, -1])}, r"labels.npy: node 3 is in the test split and has no label"),
        ({"labels": np.array([-1, 1, 0, 1, -1])}, r"labels.npy: node 0 is in the train split and has no label"),
        (
            {"labels": np.array([0, 0, 0, 1, -1])},
            r"labels.npy: node 3 has class 1, which has no node in the train split",
        ),
        ({"labels": np.array([0, 1, 0])}, r"labels.npy: has shape \[3\]; expected \[nodes\]"),
        ({"labels": np.array([0, 1, 0, 1.5, 0])}, r"labels.npy: has numbers of type float64; expected integers"),
        ({"features": np.full((5, 2), np.nan)}, r"features.npy: node 0 has a feature that is not finite"),
        ({"edges": np.array([[0, 1], [2, 5]])}, r"edges.npy: edge 1 joins \[2, 5\]; expected nodes from 0 to 4"),
        ({"edges": np.array([0, 1])}, r"edges.npy: has shape \[2\]; expected \[edges, 2\]"),
        ({"splits": np.array([0, 0, 1, 3, -1])}, r"splits.npy: node 3 has 3; expected -1, 0, 1 or 2"),
        ({"splits": np.array([0, 0, 1, 1, -1])}, r"splits.npy: no node is in the test split"),
        ({"edges": np.zeros((0, 2), np.int64)}, r"edges.npy: has shape \[0, 2\]; .* with at least one of each"),
        ({"labels": np.array([0, 2, 0, 2, -1])}, r"the train split has 2 classes, up to 2; expected .* without a gap"),
        (
            {"labels": np.array([0, 2**63, 0, 0, 0], np.uint64)},
            r"labels.npy: the train split has 2 classes, up to 9223",
        ),
        ({"labels": np.array([0, 1, 0, 1, -2])}, r"labels.npy: node 4 has -2; expected -1 or a class from 0"),
        ({"labels": np.array(["a", "b", "a", "b", ""])}, r"labels.npy: holds values of type <U1 instead of numbers"),
        ({"labels": np.zeros(5, [("a", int)])}, r"labels.npy: holds values of type .* instead of numbers"),
        (
            {"features": np.full((5, 2), 1e39)},
            r"features.npy: node 0 has a feature that is not finite as a number of 32",
        ),
        ({"features": np.eye(5, dtype=complex)}, r"features.npy: has numbers of type complex128; expected floating"),
        ({"labels": np.array([{}], dtype=object)}, r"labels.npy: holds objects instead of numbers"),
    ],
)
def test_arrays_that_cannot_be_used(changed: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        write_graph_of(source_of(tmp_path, **changed), tmp_path)


def test_rows_stay_rows_however_an_array_lies_in_memory(tmp_path: Path) -> None:
    features = np.arange(10.0).reshape(5, 2)
    for number, stored in enumerate((np.asfortranarray(features), features.astype(">f4"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_graph_of(source_of(folder, features=stored, edges=np.asfortranarray(GOOD["edges"])), folder)
        graph = read_graph(folder)
        assert graph.features.tolist() == features.tolist()
        assert sorted(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))[0] == (0, 1)


def test_a_label_of_a_node_without_a_split_is_no_class(tmp_path: Path) -> None:
    write_graph_of(source_of(tmp_path, labels=np.array([0, 1, 0, 1, 10**9])), tmp_path)
    assert read_graph(tmp_path).classes == 2


def test_files_that_are_no_arrays(tmp_path: Path) -> None:
    """Nothing is unpickled, and a header that claims more than the file has allocates nothing."""
    source = source_of(tmp_path)
    whole = (source / "features.npy").read_bytes()
    longer = whole.replace(b"(5, 5), }" + 12 * b" ", b"(99999999999, 5), }" + 2 * b" ")
    assert len(longer) == len(whole) != 0 and longer != whole
    for contents, text in (
        (longer, "is cut off: its array has 3999999999960 bytes, of which 200 are there"),
        (whole[:-1], "is cut off: its array has 200 bytes, of which 199 are there"),
        (whole + b"12", "has 2 bytes behind its array; expected none"),
        (whole[:50], "its header is cut off or broken"),
        (whole[:7], "its header is cut off or broken"),
        (whole.replace(b"(5, 5), }", b"(5, 5,   "), "its header is cut off or broken"),
        (whole.replace(b"(5, 5)", b"(-5,-5)")[: len(whole)], "its header has a shape that no array has"),
        (whole.replace(b"\x01\x00", b"\x03\x00", 1), "its header is cut off or broken"),
        (b"", "is no .npy file; expected an array of numbers, as numpy.save writes it"),
        (pickle.dumps(np.eye(5)), "is no .npy file"),
    ):
        (source / "features.npy").write_bytes(contents)
        with pytest.raises(ValueError) as refused:
            write_graph_of(source, tmp_path)
        assert str(refused.value).startswith(f"{source}/features.npy: {text}")
    with (source / "features.npy").open("wb") as stream:
        np.savez(stream, features=np.eye(5))
    with pytest.raises(ValueError, match=r"features.npy: is an archive of arrays; expected one array"):
        write_graph_of(source, tmp_path)
    (source / "features.npy").unlink()
    os.mkfifo(source / "features.npy")
    with pytest.raises(ValueError, match=r"features.npy: is no regular file$"):
        write_graph_of(source, tmp_path)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"features.npy: no such file$"):
        write_graph_of(tmp_path, tmp_path)


def test_a_block_model_has_its_degrees_and_its_known_best(tmp_path: Path) -> None:
    write_generated(BlockModel(nodes=600, classes=3, within=8, across=2), 1, tmp_path)
    graph = read_graph(tmp_path)
    same = graph.labels[graph.sources] == graph.labels[graph.targets]
    assert same.sum() / 600 == pytest.approx(8, rel=0.1) and (~same).sum() / 600 == pytest.approx(2, rel=0.15)
    assert [len(graph.nodes(split)) for split in ("train", "valid", "test")] == [360, 60, 180]
    assert graph.known_best is not None and 0.9 < graph.known_best <= 1
