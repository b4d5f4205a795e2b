"""Files of tensor parts: any rectangle is read back, byte for byte and no byte more; other programs read them too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open
from torch.distributed import checkpoint
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from yatt_core import progress
from yatt_core.digests import file_sha256, weights_digest
from yatt_core.errors import DataError
from yatt_core.models.tensor_files import TensorFile
from yatt_core.progress import seconds_since_progress
from yatt_core.wire import part_files
from yatt_core.wire.part_files import PartFiles, files_of_parts, write_parts, write_tensors
from yatt_core.wire.parts import Box, TensorPart

NOISE = np.random.default_rng(0)
TENSORS = {
    "rows": NOISE.normal(size=(11, 6)).astype(np.float32),
    "columns": NOISE.normal(size=(5, 12)).astype(np.float32),
    "cube": NOISE.normal(size=(4, 3, 5)),
    "flat": NOISE.integers(0, 9, 13),
    "scalar": np.array(2.5, np.float16),
    "empty": np.zeros((0, 4), np.float32),
    "mask": np.array([True, False, True]),
}
ALONE = ("scalar", "empty", "mask")


def parts_of(rank: int) -> list[TensorPart[np.ndarray]]:
    """Returns the parts of one of three ranks: rows, columns, or rectangles that begin within a row."""
    found = []
    for name, values in TENSORS.items():
        axis = 1 if name == "columns" else 0
        if name in ALONE:
            pieces = [((0,) * values.ndim, values)] if rank == 1 else []
        elif name == "rows" and rank == 0:  # all of the first two rows and a part of the third
            pieces = [((0, 0), values[:2]), ((2, 0), values[2:3, :4])]
        elif name == "rows" and rank == 1:
            pieces = [((2, 4), values[2:3, 4:]), ((3, 0), values[3:7])]
        else:
            size = values.shape[axis]
            first, last = (7, 11) if name == "rows" else (size * rank // 3, size * (rank + 1) // 3)
            start = tuple(first if dimension == axis else 0 for dimension in range(values.ndim))
            pieces = [(start, values[:, first:last] if axis else values[first:last])]
        found += [TensorPart(name, values.shape, start, piece, (rank,)) for start, piece in pieces]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(3):
        entries = write_tensors(tmp_path, rank, 3, {"weights": parts_of(rank)})
        for name, entry in entries.items():
            assert entry == type(entry)((tmp_path / name).stat().st_size, file_sha256(tmp_path / name))
    return tmp_path / "weights"


def test_any_rectangle_is_read_and_not_a_byte_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = PartFiles(files_of_parts(folder))
    read = []
    real = part_files._read_all
    monkeypatch.setattr(
        part_files, "_read_all", lambda fd, target, *rest: (read.append(len(target)), real(fd, target, *rest))
    )
    files.require_whole()
    for name, values in TENSORS.items():
        np.testing.assert_array_equal(files.read(name), values)
        for _ in range(30 if values.size else 0):
            start = [int(NOISE.integers(0, size)) for size in values.shape]
            sizes = [int(NOISE.integers(1, size - first + 1)) for first, size in zip(start, values.shape, strict=True)]
            box = Box(tuple(start), tuple(sizes))
            read.clear()
            found = files.read(name, box)
            np.testing.assert_array_equal(found, values[box.slices((0,) * values.ndim)])
            assert sum(read) == found.nbytes
    assert files.shapes == {name: values.shape for name, values in TENSORS.items()}


def test_the_digest_is_that_of_the_whole_tensors_in_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "BLOCK_BYTES", 100)
    files = PartFiles(files_of_parts(folder))
    assert max(block.nbytes for name in TENSORS for block in files.blocks(name)) <= 120
    assert files.digest() == weights_digest(TENSORS)


def test_torch_distributed_checkpoint_and_safetensors_read_the_folder(folder: Path) -> None:
    wanted = {name: torch.from_numpy(values) for name, values in TENSORS.items() if values.size}
    found = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    checkpoint.load(found, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
    with safe_open(folder / "rank-00002-of-00003.safetensors", framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("rows"), TENSORS["rows"][7:])


def test_files_of_other_programs_hold_whole_tensors(tmp_path: Path) -> None:
    safetensors.numpy.save_file(TENSORS, tmp_path / "model.safetensors")
    files = PartFiles(files_of_parts(tmp_path))
    files.require_whole()
    assert files.digest() == weights_digest(TENSORS)
    np.testing.assert_array_equal(files.read("rows", Box((3, 1), (5, 2))), TENSORS["rows"][3:8, 1:3])


def test_a_missing_part_a_part_given_twice_and_contradictions_are_refused(folder: Path) -> None:
    whole = files_of_parts(folder)
    for left_out in (path for path in whole if path.name.startswith("rank-00002")):
        files = PartFiles([path for path in whole if path != left_out])
        with pytest.raises(DataError, match="parts of rows have 42 of 66"):
            files.require_whole()
        with pytest.raises(DataError, match="a part of rows is missing"):
            files.read("rows")
        np.testing.assert_array_equal(files.read("rows", Box((0, 0), (7, 6))), TENSORS["rows"][:7])
    twice = folder / "again.safetensors"
    write_parts(twice, [TensorPart("rows", (11, 6), (7, 0), TENSORS["rows"][7:], (0,))])
    with pytest.raises(DataError):
        PartFiles([*whole, twice]).require_whole()
    write_parts(twice, [TensorPart("rows", (12, 6), (11, 0), TENSORS["rows"][:1], (0,))])
    with pytest.raises(DataError, match="again"):
        PartFiles([*whole, twice])


def test_bfloat16_is_read_as_its_bits(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    values = torch.randn(4, 3).bfloat16()
    save_file({"x": values}, tmp_path / "x.safetensors")
    files = PartFiles([tmp_path / "x.safetensors"])
    assert torch.equal(torch.from_numpy(files.read("x")).view(torch.bfloat16), values)
    assert (files.kinds, files.nbytes("x")) == ({"x": "BF16"}, 24)


@pytest.mark.parametrize("damage", ["length", "text", "type", "offsets", "short"])
def test_a_damaged_header_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.safetensors"
    write_parts(path, [TensorPart("x", (4, 2), (0, 0), np.ones((2, 2), np.float32), (0,))])
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    if damage == "type":
        header["x"]["dtype"] = "F7"
    if damage == "offsets":
        header["x"]["data_offsets"] = [0, 20]
    text = b"no json" if damage == "text" else json.dumps(header).encode()
    length = 2**60 if damage == "length" else len(text)
    path.write_bytes(length.to_bytes(8, "little") + text + data[8 + size : -1 if damage == "short" else None])
    with pytest.raises(DataError, match=r"x\.safetensors"):
        PartFiles([path])


def test_reading_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tensors(tmp_path, 0, 1, {"weights": [TensorPart("a", (4,), (0,), np.ones(4, np.float32), (0,))]})
    monkeypatch.setattr(progress, "_latest", None)
    files = PartFiles(files_of_parts(tmp_path / "weights"))
    assert seconds_since_progress() is None
    files.read("a")
    assert seconds_since_progress() is not None
    monkeypatch.setattr(progress, "_latest", None)
    (path,) = files_of_parts(tmp_path / "weights")
    assert TensorFile(path).rows("a").tolist() == [1.0] * 4
    assert seconds_since_progress() is not None
