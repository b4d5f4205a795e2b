"""Nodes with disks of their own fetch the blocks of a checkpoint that their ranks need, and little else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from tests.checkpoints.scenarios import FOLDER, IDENTITY, TENSORS, attempt, publish, state_of
from tests.object_store.server import S3Server
from yatt_core.checkpoints.contents import open_tensors
from yatt_core.checkpoints.needed import (
    Spans,
    bring_index,
    bring_needed,
    divided,
    merged,
    needed_folder,
    needed_spans,
)
from yatt_core.checkpoints.retention import sweep_checkpoints
from yatt_core.checkpoints.spread import SpreadAttempt
from yatt_core.errors import DataError
from yatt_core.manifests import load_manifest
from yatt_core.protocols.engines import FrozenState, NeededTensor
from yatt_core.storage.objects import ObjectStore
from yatt_core.storage.run_store import ObjectRunStore
from yatt_core.wire.part_index import SUFFIX
from yatt_core.wire.parts import Box, TensorPart, contributed

RUN = "toy-1"
WRITERS = 4
ROWS = 720
WIDTH = 256
MATRIX = np.random.default_rng(7).normal(size=(ROWS, WIDTH)).astype(np.float32)
NORM = np.arange(WIDTH, dtype=np.float32)
"""A tensor that all ranks hold."""


def rows(rank: int, ranks: int) -> range:
    return range(ROWS * rank // ranks, ROWS * (rank + 1) // ranks)


def frozen(rank: int) -> FrozenState:
    """Returns a rank's share: rows of two matrices, and what it contributes of a tensor that all hold."""
    own = rows(rank, WRITERS)
    held = [
        TensorPart("m", MATRIX.shape, (own.start, 0), MATRIX[own.start : own.stop], (rank,)),
        TensorPart("n", NORM.shape, (0,), NORM, tuple(range(WRITERS))),
    ]
    moment = TensorPart("mean.m", MATRIX.shape, (own.start, 0), -MATRIX[own.start : own.stop], (rank,))
    files = {"state.json": b'{"version": 10}'} if rank == 0 else {}
    return FrozenState(rank, WRITERS, {"weights": list(contributed(held, rank)), "optimizer": [moment]}, files)


def needed_by(rank: int, ranks: int) -> list[NeededTensor]:
    own = rows(rank, ranks)
    box = Box((own.start, 0), (len(own), WIDTH))
    return [NeededTensor("weights", "m", box), NeededTensor("weights", "n"), NeededTensor("optimizer", "mean.m", box)]


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Returns the run's folder as nodes have it: the first two have written a checkpoint, two ranks each."""
    folders = [tmp_path / name / RUN for name in ("one", "two", "three", "four")]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


@pytest.fixture
def sha256(server: S3Server, objects: ObjectStore, nodes: list[Path]) -> str:
    """Publishes the checkpoint; returns its manifest's sha256."""
    identity = dataclasses.replace(IDENTITY, weights_digest="")
    places = [nodes[rank * 2 // WRITERS] for rank in range(WRITERS)]
    attempts = [SpreadAttempt(node, FOLDER, "a", identity, ObjectRunStore(objects, node)) for node in places]
    for rank in reversed(range(WRITERS)):
        attempts[rank].write(frozen(rank))
    receipt = attempts[0].publish(frozen(0), 0.0, Event())
    (nodes[0] / FOLDER / "weights" / "rank-00002-of-00004.a0.safetensors").unlink()  # fetched for the digest
    (nodes[0] / FOLDER / "weights" / "rank-00003-of-00004.a0.safetensors").unlink()
    forget(server)
    return receipt.manifest_sha256


def forget(server: S3Server) -> None:
    server.requests.clear()
    server.answers.clear()


def fetched(server: S3Server, *parts: str) -> int:
    """Returns the bytes of the answers to requests for objects of which the name has one of the parts."""
    return sum(
        sent for request, sent in server.answers if request.startswith("GET") and any(p in request for p in parts)
    )


def bring(objects: ObjectStore, node: Path, sha256: str, ranks: Mapping[int, list[NeededTensor]]) -> int:
    """Does what the ranks of a node do together before they load; returns the bytes that were fetched."""
    store = ObjectRunStore(objects, node)
    wanted: list[Spans] = []
    for needed in ranks.values():
        place = bring_index(store, node, FOLDER, sha256)
        assert place is not None
        wanted.append(needed_spans(place, needed))
    return sum(bring_needed(store, node, FOLDER, share) for share in divided(wanted))


def read(node: Path, ranks: Mapping[int, list[NeededTensor]]) -> Iterator[tuple[NeededTensor, np.ndarray]]:
    for needed in ranks.values():
        for each in needed:
            yield each, open_tensors(needed_folder(node, FOLDER), each.subfolder).read(each.name, each.box)


def size_of(ranks: Mapping[int, list[NeededTensor]]) -> int:
    """Returns the bytes that ranks need together, of which none needs the same rows."""
    boxes = [each.box for needed in ranks.values() for each in needed if each.box is not None]
    return 4 * (sum(box.sizes[0] * box.sizes[1] for box in boxes) + WIDTH)


@pytest.mark.parametrize("ranks", [4, 3, 6, 8])
def test_a_node_fetches_what_its_ranks_need_whatever_the_layout(
    server: S3Server, objects: ObjectStore, nodes: list[Path], sha256: str, ranks: int
) -> None:
    own = {rank: needed_by(rank, ranks) for rank in range(ranks // 2, ranks)}
    count = bring(objects, nodes[2], sha256, own)
    for each, found in read(nodes[2], own):
        whole = {"m": MATRIX, "n": NORM, "mean.m": -MATRIX}[each.name]
        np.testing.assert_array_equal(found, whole if each.box is None else whole[each.box.slices((0, 0))])
    assert json.loads((needed_folder(nodes[2], FOLDER) / "state.json").read_bytes()) == {"version": 10}
    need = size_of(own)
    assert count == fetched(server, ".safetensors")
    assert need <= fetched(server, "/") <= 1.1 * need
    forget(server)
    assert bring(objects, nodes[2], sha256, own) == fetched(server, "/") == 0, "what is on the disk is used"
    assert bring(objects, nodes[2], sha256, own | {0: needed_by(0, ranks)}) == pytest.approx(need / len(own), rel=0.1)


def test_a_node_fetches_nothing_of_what_it_wrote_itself_unless_it_is_damaged(
    server: S3Server, objects: ObjectStore, nodes: list[Path], sha256: str
) -> None:
    own = {rank: needed_by(rank, 4) for rank in (2, 3)}
    assert bring(objects, nodes[1], sha256, own) == NORM.nbytes, "a rank of the other node has written it"
    file = nodes[1] / FOLDER / "weights" / "rank-00002-of-00004.a0.safetensors"
    contents = file.read_bytes()
    damaged = bytearray(contents)
    damaged[-5] ^= 1
    file.write_bytes(damaged)
    assert needed_folder(nodes[1], FOLDER).exists()
    sweep_checkpoints(nodes[1], [FOLDER])
    assert not needed_folder(nodes[1], FOLDER).exists()
    header = 8 + int.from_bytes(contents[:8], "little")
    assert bring(objects, nodes[1], sha256, own) == len(contents) - header + NORM.nbytes
    for each, found in read(nodes[1], own):
        assert each.name == "n" or found.any()
        if each.name == "m" and each.box is not None:
            np.testing.assert_array_equal(found, MATRIX[each.box.slices((0, 0))])
    assert file.read_bytes() == bytes(damaged), "a file outside is not written to"


def test_what_was_not_fetched_cannot_be_read(objects: ObjectStore, nodes: list[Path], sha256: str) -> None:
    own = {0: needed_by(0, 4)}
    bring(objects, nodes[3], sha256, own)
    files = open_tensors(needed_folder(nodes[3], FOLDER), "weights")
    files.require_whole()
    files.read("m", Box((10, 3), (20, 50)))
    for first in (ROWS // 4 - 1, ROWS // 4, ROWS - 1):
        with pytest.raises(DataError, match="not fetched"):
            files.read("m", Box((first, 0), (min(8, ROWS - first), WIDTH)))


@pytest.mark.parametrize("what", ["block", "short", "missing", "index", "state"])
def test_bytes_of_the_store_that_are_damaged_are_refused(
    objects: ObjectStore, nodes: list[Path], sha256: str, what: str
) -> None:
    name = {"index": f"rank-00001-of-00004.a0{SUFFIX}", "state": "state.json"}.get(
        what, "weights/rank-00001-of-00004.a0.safetensors"
    )
    data = bytearray(objects.read(f"{RUN}/{FOLDER}/{name}") or b"")
    data[-1] ^= 1
    if what == "missing":
        objects.delete([f"{RUN}/{FOLDER}/{name}"])
    else:
        objects.write(f"{RUN}/{FOLDER}/{name}", bytes(data[: len(data) // 2] if what == "short" else data))
    with pytest.raises(DataError, match=name):
        bring(objects, nodes[2], sha256, {1: needed_by(1, 4)})
    if what in ("block", "short", "missing"):
        with pytest.raises(DataError, match="not fetched"):
            list(read(nodes[2], {1: needed_by(1, 4)}))


def test_a_checkpoint_without_indexes_or_with_another_manifest_is_read_whole(
    objects: ObjectStore, nodes: list[Path]
) -> None:
    publish(nodes[0], lambda word: None)
    store = ObjectRunStore(objects, nodes[0])
    store.publish(FOLDER)
    sha256 = load_manifest(nodes[0] / FOLDER, "checkpoint").sha256
    for node in nodes[:2]:
        assert bring_index(ObjectRunStore(objects, node), node, FOLDER, sha256) is None
        assert not needed_folder(node, FOLDER).exists()
    assert bring_index(store, nodes[0], FOLDER, "0" * 64) is None


def test_spans_are_joined_and_divided_among_the_ranks_of_a_disk() -> None:
    assert merged([(8, 9), (0, 2), (1, 4), (4, 5)]) == ((0, 5), (8, 9))
    shares = divided([{"a": ((0, 4),), "b": ((0, 2),)}, {"a": ((4, 6),), "c": ((1, 3),)}])
    assert shares == [{"a": ((0, 6),)}, {"b": ((0, 2),), "c": ((1, 3),)}]


def test_an_index_lets_scalars_and_tensors_of_other_types_be_read(objects: ObjectStore, nodes: list[Path]) -> None:
    both = attempt(nodes[0])
    for rank in (1, 0):
        both.write(state_of(rank))
    receipt = both.publish(state_of(0), 0.0, Event())
    ObjectRunStore(objects, nodes[0]).publish(FOLDER)
    everything = {0: [NeededTensor(kind, name) for kind in ("weights", "reference") for name in TENSORS]}
    bring(objects, nodes[1], receipt.manifest_sha256, everything)
    for each, found in read(nodes[1], everything):
        np.testing.assert_array_equal(found, TENSORS[each.name])
