"""Writes safetensors files of whole tensors block by block, so that no tensor has to be in memory as a whole.

Consumes tensors by name, shape and type, and their numbers as blocks of rows. Produces files of at most `FILE_BYTES`, hashed
as they are written, under the names that transformers expects, with an index if there are several.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from yatt_core import durable
from yatt_core.manifests import FileEntry, entry_of_file
from yatt_core.wire.part_files import ALIGNMENT, BLOCK_BYTES, TYPES, TensorSource

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FILE_BYTES = 2 << 30
"""Maximum size of a weights file, unless a single tensor is larger."""


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """What `write_whole_tensors` wrote.

    bytes: total size of the tensors.
    weights: names of the files of tensors.
    entries: size and sha256 of each file, the index included.
    """

    bytes: int
    weights: tuple[str, ...]
    entries: Mapping[str, FileEntry]


def sizes_of(source: TensorSource) -> dict[str, int]:
    """Returns the size of each tensor in bytes, in order of the names."""
    return {
        name: prod(source.shapes[name]) * np.dtype(TYPES[source.kinds[name]]).itemsize for name in sorted(source.shapes)
    }


def write_whole_tensors(
    source: TensorSource,
    folder: Path,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> WrittenFiles:
    """Writes and syncs all tensors into an existing folder, in order of their names.

    advance: called with the bytes written so far and the total, after each file.
    """
    sizes = sizes_of(source)
    groups = _grouped(sizes)
    total = sum(sizes.values())
    done = 0
    names = [
        SINGLE if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        for number in range(1, len(groups) + 1)
    ]
    entries = {}
    for file, group in zip(names, groups, strict=True):
        entries[file] = _write_file(folder / file, source, {name: sizes[name] for name in group})
        done += sum(sizes[name] for name in group)
        advance(done, total)
    if len(groups) > 1:
        places = {name: file for file, group in zip(names, groups, strict=True) for name in group}
        durable.write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
        entries[INDEX] = entry_of_file(folder / INDEX)
    return WrittenFiles(total, tuple(names), entries)


def _grouped(sizes: Mapping[str, int]) -> Sequence[Sequence[str]]:
    """Returns consecutive tensors, as many per group as fit into one file."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > FILE_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _write_file(path: Path, source: TensorSource, sizes: Mapping[str, int]) -> FileEntry:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size in sizes.items():
        header[name] = {
            "dtype": source.kinds[name], "shape": list(source.shapes[name]), "data_offsets": [at, at + size],
        }  # fmt: skip
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    digest = hashlib.sha256()
    size = 0
    with path.open("wb") as stream:
        for piece in _pieces(len(text).to_bytes(8, "little") + text, source, sizes):
            digest.update(piece)
            size += stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    assert size == 8 + len(text) + at, "each tensor is written whole"
    return FileEntry(size, digest.hexdigest())


def _pieces(header: bytes, source: TensorSource, names: Mapping[str, int]) -> Iterator[memoryview]:
    yield memoryview(header)
    for name in names:
        for block in source.blocks(name):
            if not block.size:
                continue
            little_endian = np.ascontiguousarray(block.astype(block.dtype.newbyteorder("<"), copy=False))
            data = little_endian.reshape(-1).view(np.uint8).data
            for start in range(0, len(data), BLOCK_BYTES):
                yield data[start : start + BLOCK_BYTES]
